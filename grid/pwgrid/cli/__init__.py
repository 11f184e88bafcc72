"""The command line: one module for each thing a user or operator asks for."""
