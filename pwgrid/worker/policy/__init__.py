"""The worker's decisions: pure functions and values. Time is an argument."""
