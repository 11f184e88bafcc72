"""Tells whether traces are asked for, and what keeps them from being exported, before OpenTelemetry is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_EXPORTER: Final = "opentelemetry-exporter-otlp-proto-http"


def asked_by(environ: Mapping[str, str]) -> str | None:
    """The variable that asks for traces; None where none does, or another one says that there are to be none."""
    if _said(environ, "OTEL_SDK_DISABLED") == "true" or _said(environ, "OTEL_TRACES_EXPORTER") == "none":
        return None
    return next((name for name in ENDPOINTS if _said(environ, name)), None)


class Fault(NamedTuple):
    """Why there are no traces although they are asked for, and what to do about it."""

    found: str
    to_do: str

    def __str__(self) -> str:
        return f"no traces: {self.found}: {self.to_do}"


def fault(environ: Mapping[str, str]) -> Fault | None:
    """None where there are traces, or nobody asks for them."""
    if (variable := asked_by(environ)) is None:
        return None
    if not _is_url(environ[variable]):
        return Fault(f"{variable} is no URL", "set it to one like http://collector:4318, or OTEL_SDK_DISABLED=true")
    for name in _PROTOCOLS:
        if _said(environ, name) not in ("", _PROTOCOL):
            return Fault(
                f"{name} is not {_PROTOCOL}, which is all that there is",
                "unset it, and take the collector's port for that (4318), or set OTEL_SDK_DISABLED=true",
            )
    if not _is_installed():
        return Fault(
            f"{variable} asks for them, and OpenTelemetry is not installed",
            "pip install 'pwgrid[traces]', or set OTEL_SDK_DISABLED=true",
        )
    return None


def _is_installed() -> bool:
    """Whether there is an exporter. Loads none of it."""
    from importlib import metadata

    try:
        metadata.distribution(_EXPORTER)
    except metadata.PackageNotFoundError:
        return False
    return True


def _said(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip().lower()


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        is_good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # brackets, or the port
        return False
    return is_good and not any(map(str.isspace, text))
