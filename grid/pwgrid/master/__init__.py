"""The master: forks, watches, restarts and ends all others. No asyncio, no thread, no Redis, no client bytes."""
