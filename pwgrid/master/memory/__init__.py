"""Measures the memory of workers and the host, and acts on it."""
