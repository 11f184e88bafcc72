"""The grid's settings: where they come from, what they may be, how they are shown."""
