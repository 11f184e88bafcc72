"""What each command is called, its options and its help. The work is done elsewhere, imported when it is needed."""
