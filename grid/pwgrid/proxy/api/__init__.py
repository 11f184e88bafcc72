"""The HTTP API: health, readiness, metrics, workers, sessions."""
