"""The fault tests share the Playwright of the e2e tests; each row starts a grid of its own."""

from tests.e2e.conftest import playwright

__all__ = ["playwright"]
