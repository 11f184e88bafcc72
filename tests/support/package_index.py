"""A package index on this machine, with the real pip in it, as a wheel made of the one that is installed."""

import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path

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

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/simple"
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.requests: list[tuple[str, str | None]] = []

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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.requests.append((self.path, self.headers["Authorization"]))
            kind, body = index.pages.get(self.path, ("text/plain", b""))
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index = PackageIndex(server.server_port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
