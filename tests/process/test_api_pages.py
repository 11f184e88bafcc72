"""The API describes itself: pages without the internet, curl lines that work, and no 5xx whatever it is asked."""

import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from pwgrid.cli import token as tokens
from pwgrid.runtime.directory import SESSION_FILES, worker_dir
from pwgrid.tokens.tokens import Role
from tests.support import raw
from tests.support.grid import ROOT, Grid, eventually, running_grid

LINES = [
    line
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL)
    for line in block.replace("\\\n", "").splitlines()
    if line.startswith("curl ")
]
EXAMPLES = 5
"""For each endpoint."""


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with tempfile.TemporaryDirectory(prefix="pgapi-") as directory:
        config = Path(directory) / "grid.toml"
        config.write_text('[[pools]]\nname = "chromium"\nworkers = 2\nlabels = ["AppA:Chromium:UAT"]\n')
        with running_grid(environment={"PWGRID_CONFIG": str(config)}, fake=True) as grid:
            yield grid


@pytest.fixture(scope="module")
def token(grid: Grid) -> str:
    place = tokens.Place(Path(grid.environment["PWGRID_CONFIG"]).with_name("tokens.json"))
    return tokens.create(place, "ops", Role.OPERATOR, 0, ())[0]


def described(grid: Grid) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(grid.get("/openapi.json")[2])
    return found


def operations(grid: Grid) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, methods in described(grid)["paths"].items() for method in methods}


def target_of(line: str) -> tuple[str, str]:
    """Method and path of a curl line, names of variables for what stands in the path."""
    words = shlex.split(line, comments=True)
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    url = next(word for word in words if word.startswith("$GRID"))
    return method, url.removeprefix("$GRID").partition("?")[0]


def test_every_endpoint_has_a_curl_line(grid: Grid) -> None:
    shown = {(method, re.sub(r"\$\w+|(?<=/pools/)\w+", "{}", path)) for method, path in map(target_of, LINES)}
    missing = {
        (method, path) for method, path in operations(grid) if (method, re.sub(r"\{\w+\}", "{}", path)) not in shown
    }
    assert missing == set()


def test_every_curl_line_of_the_docs_does_what_it_says(grid: Grid, token: str, tmp_path: Path) -> None:
    (tmp_path / ".curlrc").write_text("silent\nshow-error\nfail-with-body\nmax-time = 30\n")
    bearer = {"Authorization": f"Bearer {token}"}

    def asked(path: str) -> Any:
        return json.loads(grid.get(path, **bearer)[2])

    def serving() -> list[Any]:
        return [each for each in asked("/v1/workers")["workers"] if each["status"] == "available"]

    environment = {**os.environ, "HOME": str(tmp_path), "CURL_HOME": str(tmp_path), "GRID": grid.http, "TOKEN": token}
    with raw.session(grid.port, f"/?token={token}"):
        running = eventually(lambda: asked("/v1/sessions?status=running")["sessions"], "its start is on record")
        environment |= {"SESSION": running[0]["id"], "FILE": "report.pdf"}
        has_downloaded(worker_dir(grid.runtime, running[0]["workerId"]), running[0]["id"], "report.pdf")
        for line in LINES:
            environment["WORKER"] = eventually(serving, "a worker serves")[0]["id"]
            done = subprocess.run(
                ["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            if done.stdout.startswith("{") and "browserId" in (answer := json.loads(done.stdout)):
                environment["LEASE"] = answer["browserId"]


def has_downloaded(worker: Path, session_id: str, name: str) -> None:
    """The fake browser server downloads nothing: this is what the real one leaves."""
    directory = next((worker / "sessions").iterdir())
    (directory / name).write_text("%PDF")
    (worker / SESSION_FILES / session_id).symlink_to(directory.name)


def test_the_pages_need_no_other_host(grid: Grid) -> None:
    status, headers, page = grid.get("/docs")
    assert status == 200
    named = re.findall(r"""(?:src|href)=["']([^"']+)|url: *["']([^"']+)""", page.decode())
    urls = [url for pair in named for url in pair if url]
    assert len(urls) >= 4
    assert not any("//" in url for url in urls)
    policy = headers.get("content-security-policy", headers.get("Content-Security-Policy", ""))
    assert "default-src 'self'" in policy
    assert "http" not in policy
    for url in urls:
        status, found, content = grid.get(f"/{url}")
        assert (status, len(content) > 1000) == (200, True), url
        assert found["content-type"].partition(";")[0] in (
            "text/javascript",
            "text/css",
            "image/png",
            "application/json",
        )
    assert grid.get("/docs/../grid.toml")[0] in (
        401,
        404,
    )  # an unknown path, for which a token is asked where one is made
    assert grid.get("/docs/nothing")[0] == 404


def test_nothing_that_the_schema_allows_is_answered_with_a_5xx(grid: Grid, token: str) -> None:
    import schemathesis  # here: it takes long to load, and each process of tests would

    schema = schemathesis.openapi.from_url(f"{grid.http}/openapi.json")
    tried = set()
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=[*HealthCheck])
        @given(case=operation.as_strategy())
        def ask(case: schemathesis.Case) -> None:
            answer = case.call(headers={"Authorization": f"Bearer {token}"}, timeout=60)
            assert answer.status_code < 500 or (case.path, answer.status_code) == ("/health/ready", 503), answer.text
            if answer.status_code >= 400:
                assert answer.json()["error"]

        ask()
        tried.add((operation.method.upper(), operation.path))
    assert tried == operations(grid)
