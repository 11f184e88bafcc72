"""Imports structlog without rich, which it takes up where it is installed, and which nothing here uses.

It would cost each process of the grid about 1 MiB (`python -m bench status`). To be imported before what logs.
"""

import sys
from typing import Any, Final, cast

_RICH: Final = "rich"
_is_kept_out: Final = sys.modules.setdefault(_RICH, cast("Any", None)) is None  # None makes its import fail

try:
    import structlog  # noqa: F401 - that is all
finally:
    if _is_kept_out:
        del sys.modules[_RICH]
