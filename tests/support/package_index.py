"""A package index on this machine, with the real pip in it, as a wheel made of the one that is installed."""

import hashlib
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

from tests.support.http_server import answering

JSON = "application/vnd.pypi.simple.v1+json"


def pip_wheel(directory: Path) -> Path:
    """pip as a wheel."""
    pip = distribution("pip")
    path = directory / f"pip-{pip.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in pip.files or ():
            if not str(file).startswith("..") and file.suffix != ".pyc" and file.name not in ("INSTALLER", "REQUESTED"):
                wheel.write(str(pip.locate_file(file)), str(file))
    return path


class PackageIndex:
    """What it serves can be changed while it runs; `requests` has (path, Authorization) of each request."""

    def __init__(self) -> None:
        self.url = ""
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.requests: list[tuple[str, str | None]] = []

    def answer(self, path: str, authorization: str | None) -> tuple[str, bytes]:
        """Content type and body of a page; empty where there is none."""
        self.requests.append((path, authorization))
        return self.pages.get(path, ("text/plain", b""))

    def offer(self, wheel: Path, *, sha256: str | None = None, as_html: bool = False) -> None:
        """Serves this wheel as the only pip, with its true digest or the given one."""
        data = wheel.read_bytes()
        digest = sha256 or hashlib.sha256(data).hexdigest()
        self.pages[f"/files/{wheel.name}"] = ("application/octet-stream", data)
        if as_html:
            anchor = f'<a href="../../files/{wheel.name}#sha256={digest}" data-requires-python="&gt;=3.9">pip</a>'
            self.pages["/simple/pip/"] = ("text/html", f"<html><body>{anchor}</body></html>".encode())
        else:
            file = {"url": f"/files/{wheel.name}", "hashes": {"sha256": digest}, "requires-python": ">=3.9"}
            self.pages["/simple/pip/"] = (JSON, json.dumps({"files": [file]}).encode())


@contextmanager
def package_index() -> Iterator[PackageIndex]:
    """An index on a free port of the loopback, gone at the end."""
    index = PackageIndex()
    with answering(index.answer) as (url, _):
        index.url = f"{url}/simple"
        yield index
