"""Adoption of an earlier master's children, reloads, and version changes."""
