"""The MLflow mirror of the records, and the pages that show it."""
