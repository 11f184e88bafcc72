"""Fetches pip's own wheel from the package index that pip would use. Standard library only; installs nothing.

Debian and Ubuntu keep the pip of virtual environments in a package that only root installs; the index has it for all.
"""

from __future__ import annotations

import base64
import configparser
import hashlib
import html.parser
import json
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_INDEX = "https://pypi.org/simple"
DEFAULT_TIMEOUT_S = 15.0
ATTEMPTS = 3
_JSON = "application/vnd.pypi.simple.v1+json"
_WHEEL = re.compile(r"pip-(\d+(?:\.\d+)*)-(?:py2\.)?py3-none-any\.whl")


class PipUnavailable(Exception):
    """No pip can be had from the index; the sentence says why."""


@dataclass(frozen=True)
class Wheel:
    """One release of pip on an index. `sha256` is empty where the index does not tell."""

    version: tuple[int, ...]
    url: str
    sha256: str

    @property
    def filename(self) -> str:
        """The last part of its path."""
        return Path(urllib.parse.urlsplit(self.url).path).name


@dataclass(frozen=True)
class Index:
    """How to reach the index, as pip's variables and files have it."""

    url: str
    certificates: str = ""
    proxy: str = ""
    trusted_hosts: tuple[str, ...] = ()
    timeout_s: float = DEFAULT_TIMEOUT_S

    def trusts(self, url: str) -> bool:
        """Whether the user told pip not to check this host's certificate."""
        parts = urllib.parse.urlsplit(url)
        return not {parts.hostname, parts.netloc.rpartition("@")[2]}.isdisjoint(self.trusted_hosts)


def index_of(environ: Mapping[str, str], root: Path = Path("/")) -> Index:
    """The index that pip would use: variables beat the user's file, which beats the host's."""
    settings: dict[str, str] = {}
    for path in _configuration_files(environ, root):
        settings.update(_settings_of(path))
    for name in ("index-url", "cert", "proxy", "trusted-host", "timeout"):
        variable = "PIP_DEFAULT_TIMEOUT" if name == "timeout" else f"PIP_{name.upper().replace('-', '_')}"
        if value := environ.get(variable) or (environ.get("PIP_TIMEOUT") if name == "timeout" else None):
            settings[name] = value
    certificates = (settings.get("cert"), environ.get("REQUESTS_CA_BUNDLE"), environ.get("CURL_CA_BUNDLE"))
    try:
        timeout_s = float(settings.get("timeout") or DEFAULT_TIMEOUT_S)
    except ValueError:
        timeout_s = DEFAULT_TIMEOUT_S
    return Index(
        settings.get("index-url") or DEFAULT_INDEX,
        certificates=next(filter(None, certificates), ""),
        proxy=settings.get("proxy", ""),
        trusted_hosts=tuple(settings.get("trusted-host", "").split()),
        timeout_s=timeout_s,
    )


def _configuration_files(environ: Mapping[str, str], root: Path) -> list[Path]:
    """Where pip reads its settings, the strongest last."""
    chosen = environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return []
    home = Path(environ.get("HOME") or Path.home())
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    site = [Path(each, "pip", "pip.conf") for each in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    files = [*(root / str(path).lstrip("/") for path in site), root / "etc/pip.conf"]
    files += [home / ".pip/pip.conf", user / "pip/pip.conf"]
    return [*files, Path(chosen)] if chosen else files


def _settings_of(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}  # pip will say what is wrong with it
    found: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            found.update({name.replace("_", "-"): value for name, value in parser.items(section)})
    return found


def fetch(index: Index, python: tuple[int, int], directory: Path) -> Path:
    """The newest pip for this Python (major, minor), as a file in `directory`. Raises PipUnavailable."""
    page = f"{index.url.rstrip('/')}/pip/"
    body, kind, address = _get(index, page, {"Accept": f"{_JSON}, text/html;q=0.1"})
    try:
        wheels = _from_json(json.loads(body), address) if kind == _JSON else _from_html(body.decode(), address)
    except (ValueError, KeyError, TypeError) as error:
        raise PipUnavailable(f"{_shown(page)} is no page of a package index: {error}") from error
    wheel = newest(wheels, python)
    if wheel is None:
        raise PipUnavailable(f"{_shown(page)} has no pip for Python {python[0]}.{python[1]}")
    data = _get(index, wheel.url, {})[0]
    if wheel.sha256 and hashlib.sha256(data).hexdigest() != wheel.sha256:
        raise PipUnavailable(f"{_shown(wheel.url)} is not what the index says: its SHA-256 differs")
    path = directory / wheel.filename
    path.write_bytes(data)
    return path


@dataclass(frozen=True)
class Offer:
    """One file on the index's page."""

    url: str
    sha256: str
    requires_python: str
    yanked: bool


def newest(offers: Sequence[Offer], python: tuple[int, int]) -> Wheel | None:
    """The newest final release that runs on this Python; None when there is none."""
    wheels = []
    for offer in offers:
        name = Path(urllib.parse.urlsplit(offer.url).path).name
        found = _WHEEL.fullmatch(name)
        if found and not offer.yanked and _admits(offer.requires_python, python):
            wheels.append(Wheel(tuple(map(int, found[1].split("."))), offer.url, offer.sha256))
    return max(wheels, key=lambda wheel: wheel.version, default=None)


def _admits(requires: str, python: tuple[int, int]) -> bool:
    """Whether a Python is new enough (pip's own metadata has no other kind of clause that matters here)."""
    bounds = re.findall(r">=\s*(\d+(?:\.\d+)?)", requires)
    return all(python >= tuple(map(int, bound.split("."))) for bound in bounds)


def _from_json(page: Any, address: str) -> list[Offer]:
    return [
        Offer(
            urllib.parse.urljoin(address, file["url"]),
            file.get("hashes", {}).get("sha256", ""),
            file.get("requires-python") or "",
            bool(file.get("yanked")),
        )
        for file in page["files"]
    ]


class _Anchors(html.parser.HTMLParser):
    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.offers: list[Offer] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "a" and attributes.get("href"):
            url, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(self.address, attributes["href"] or ""))
            sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
            requires = attributes.get("data-requires-python") or ""
            self.offers.append(Offer(url, sha256, requires, "data-yanked" in attributes))


def _from_html(page: str, address: str) -> list[Offer]:
    anchors = _Anchors(address)
    anchors.feed(page)
    return anchors.offers


def _get(index: Index, url: str, headers: Mapping[str, str]) -> tuple[bytes, str, str]:
    """Body, content type and final address. Raises PipUnavailable."""
    address, authorization = _without_credentials(url)
    if not authorization and _host(url) == _host(index.url):
        authorization = _without_credentials(index.url)[1]
    request = urllib.request.Request(address, headers={**headers, **authorization})
    reason: object = ""
    for _ in range(ATTEMPTS):
        try:
            with _opener(index, address).open(request, timeout=index.timeout_s) as answer:
                return answer.read(), answer.headers.get_content_type(), answer.geturl()
        except urllib.error.HTTPError as error:
            raise PipUnavailable(f"{address} answered {error.code} {error.reason}") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, ssl.SSLCertVerificationError):
                hint = (
                    ""
                    if _has_certificates(index)
                    else ": this host has none to check it with (package ca-certificates)"
                )
                raise PipUnavailable(
                    f"{address}: its certificate is not trusted ({reason.verify_message}){hint}"
                ) from error
    raise PipUnavailable(f"{address} cannot be reached: {reason}")


def _opener(index: Index, url: str) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context()
    if index.trusts(url):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif index.certificates:
        given = Path(index.certificates)
        try:
            context.load_verify_locations(**{"capath" if given.is_dir() else "cafile": str(given)})
        except OSError as error:
            raise PipUnavailable(f"the certificates at {given} cannot be read: {error}") from error
    # As pip does, so that what works for it works here: Python 3.13 refuses the authorities of many a company.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if index.proxy:
        handlers.append(urllib.request.ProxyHandler({"http": index.proxy, "https": index.proxy}))
    return urllib.request.build_opener(*handlers)


def _has_certificates(index: Index) -> bool:
    paths = ssl.get_default_verify_paths()
    directory = Path(paths.capath) if paths.capath else None
    return bool(index.certificates or paths.cafile or (directory and directory.is_dir() and any(directory.iterdir())))


def _host(url: str) -> str | None:
    return urllib.parse.urlsplit(url).hostname


def _without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """The address alone, and the header that stands for its user and password."""
    parts = urllib.parse.urlsplit(url)
    if not parts.username:
        return url, {}
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    user, password = (urllib.parse.unquote(each or "") for each in (parts.username, parts.password))
    return plain, {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def _shown(url: str) -> str:
    """An address that may be printed."""
    return _without_credentials(url)[0]
