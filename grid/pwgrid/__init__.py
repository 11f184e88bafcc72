"""pwgrid: a grid of real Playwright browsers on one large host."""

__version__ = "0.1.0"
