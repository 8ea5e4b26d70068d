"""The MLflow mirror of the records, and its web pages."""
