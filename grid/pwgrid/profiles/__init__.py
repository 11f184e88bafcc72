"""Profiles of browsers on disk: one file for each, and who has it now."""
