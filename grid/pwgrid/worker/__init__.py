"""The worker process: owns one browser server through its whole life."""
