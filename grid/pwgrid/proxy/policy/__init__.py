"""The proxy's decisions: pure functions and values."""
