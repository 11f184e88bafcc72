"""Borrows browsers from a grid, for Python programs. Needs nothing but the standard library.

    with borrow("AppA:Chromium:UAT", run="smoke") as lease:
        browser = playwright.chromium.connect(lease.ws_endpoint)

The same with `async with`, where `await lease.extend_async(…)` lets the program's other tasks go on.
"""

from pwgrid.client.borrowing import Borrowing, Lease, borrow
from pwgrid.client.http import GridError, GridRefusal

__all__ = ["Borrowing", "GridError", "GridRefusal", "Lease", "borrow"]
