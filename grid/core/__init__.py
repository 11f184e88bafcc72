"""Pure decisions: no I/O, no clock, no process. Time is always an argument."""
