"""Environment variables that switch off libraries' telemetry and unneeded messages."""

# Libraries read them on import, so they must be set before.
QUIET = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
