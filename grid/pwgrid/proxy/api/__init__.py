"""The HTTP API: health, readiness, metrics, workers, sessions. Touches no session's socket."""
