"""The private directory of a running grid: who is written down in it, and the processes below it."""
