"""Finds the files that are shipped beside the code: lua/, config/, systemd/ and docs/. Reads nothing itself."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def resource_dir(name: str) -> Path:
    """The directory `name` ("lua", "config", "systemd", "docs"): inside the wheel, or at the root of a checkout.

    Raises FileNotFoundError when the installation is incomplete.
    """
    for candidate in (_PACKAGE / "_resources" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{name}/ is missing from this installation of pwgrid ({_PACKAGE})")
