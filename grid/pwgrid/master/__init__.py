"""The master: forks, watches, restarts and ends all others, in one synchronous loop with one thread."""
