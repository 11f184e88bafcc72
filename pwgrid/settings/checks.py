"""Checks of single texts: each takes one and returns what is wrong with it, or nothing. Looks at no file."""

import re
from typing import Final

RUNTIME_DIR_BYTES: Final = 41
"""What a Unix socket path (107 bytes) leaves for the base. The longest is Chromium's, which dies when it does not fit:
`<base>/65535/w/01234567/tmp/org.chromium.Chromium.XXXXXX/SingletonSocket`."""

_HOST: Final = re.compile(r"[0-9A-Za-z._:%-]+")
_TOKEN: Final = re.compile(r"[!-~]+")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,]+|null")


def host(text: str) -> str:
    """A host name or address, an IPv6 one without brackets."""
    return "" if _HOST.fullmatch(text) else "must be a host name or an address (IPv6 without brackets)"


def visible_ascii(text: str) -> str:
    """What may stand in an HTTP header or a Redis key."""
    return "" if _TOKEN.fullmatch(text) else "must be visible ASCII characters without spaces"


def absolute_path(text: str) -> str:
    """A path that means the same whatever the working directory is."""
    return "" if text.startswith("/") else "must be an absolute path"


def runtime_dir(text: str) -> str:
    """An absolute path that is short enough for the Unix sockets below it."""
    if len(text.encode()) > RUNTIME_DIR_BYTES:
        return f"must be at most {RUNTIME_DIR_BYTES} bytes long: Unix sockets lie below it, and their paths are limited"
    return absolute_path(text)


def origin(text: str) -> str:
    """One web origin, as browsers send it."""
    return "" if _ORIGIN.fullmatch(text) else "must be origins like https://example.org:8443, without a path"


def browser_argument(text: str) -> str:
    """One command line switch of a browser."""
    return "" if text.startswith("-") else "must be command line switches, which begin with -"


def redis_url(text: str) -> str:
    """redis://, rediss:// or unix://, with a host or a path."""
    from urllib.parse import urlsplit  # takes milliseconds, and most grids have no such setting

    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:  # its text may hold a piece of a password
        return "must be a URL like redis://:password@host:6379/0, with special characters of the password as %2F"
    if url.scheme == "unix":
        return "" if len(url.path) > 1 else "must name a socket: unix:///path/to/redis.sock"
    if url.scheme not in ("redis", "rediss"):
        return "must begin with redis://, rediss:// or unix://"
    if not url.hostname or port == 0:
        return "must name a host: redis://host:port/database"
    return "" if re.fullmatch(r"(/\d{0,5})?", url.path) else "must end in the number of a database: redis://host:port/0"


def is_loopback(host_text: str) -> bool:
    """True when only this host can reach a listener on `host_text`. A name other than localhost counts as public."""
    from ipaddress import IPv6Address, ip_address

    if host_text.lower() == "localhost":
        return True
    try:
        address = ip_address(host_text)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
