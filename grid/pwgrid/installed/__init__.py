"""What a grid runs with, as it is installed on this host: its browsers, Playwright's driver, its own code."""
