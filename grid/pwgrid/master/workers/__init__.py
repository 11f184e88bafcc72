"""The workers as children of the master, from their fork until nothing of them is left, and their pools."""
