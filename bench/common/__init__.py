"""What every room may use: errors, the schema of settings, signals."""
