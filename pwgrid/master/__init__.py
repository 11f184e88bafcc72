"""The master: forks, watches, restarts and ends all others. No event loop, no thread, no Redis, no client bytes."""
