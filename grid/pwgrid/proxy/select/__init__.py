"""Which worker a client gets, and where it waits while there is none."""
