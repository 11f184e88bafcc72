"""The private directory of a running grid: its lock, the files of its children, and which processes belong to it."""
