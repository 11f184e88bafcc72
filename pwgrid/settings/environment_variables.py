"""Tells which variables of the environment are set. Reads no setting, so that no command pays for their model."""

from collections.abc import Mapping
from typing import Final

_SERVICE_LINK: Final = ("tcp://", "udp://", "sctp://")
"""What Kubernetes sets NAME_PORT to, in every pod beside a Service of that name, which may be redis or pwgrid."""


def set_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set: an empty text counts as not set, and so does Kubernetes' link to a Service."""
    texts = {name: text.strip() for name, text in environ.items()}
    return {
        name: text
        for name, text in texts.items()
        if text and not (name.endswith("_PORT") and text.startswith(_SERVICE_LINK))
    }
