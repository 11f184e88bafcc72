"""Names, options and help of all commands. The modules that do the work are imported when a command runs."""
