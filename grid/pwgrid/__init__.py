"""pwgrid: a grid of real Playwright browsers on one large host."""

__version__ = "1.0.0rc1"
