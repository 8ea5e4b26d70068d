"""Used by all parts of the suite: errors, the schema of settings, signals."""
