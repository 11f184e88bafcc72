"""The pytest plugin: pytest-playwright takes its browsers from a grid. Without an endpoint it does nothing.

pytest loads it by its entry point; nothing else of pwgrid imports it, or needs pytest.
"""

from pwgrid.pytest_plugin.hooks import pytest_addoption, pytest_configure, pytest_report_header

__all__ = ["pytest_addoption", "pytest_configure", "pytest_report_header"]
