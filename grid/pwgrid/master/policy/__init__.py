"""The master's decisions: pure functions and values. Time is an argument."""
