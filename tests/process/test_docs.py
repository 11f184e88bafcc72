"""The commands of the documentation, as they stand there, against one grid, page by page and in their order."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import raw
from tests.support.docs import PAGES, Block, blocks
from tests.support.grid import ROOT, Grid, eventually, running_grid

BLOCKS = [block for page in PAGES for block in blocks(page) if block.language == "sh" and not block.mark]


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with running_grid("--chromium", "2", fake=True) as grid:
        yield grid


def with_ids(text: str, grid: Grid) -> str:
    """The text with the id of a worker that is there in place of `ID`; that of a session where it is one's."""
    found = eventually(lambda: [each for each in grid.ask("status")["workers"] if each["status"] == "available"], "one")
    (session,) = grid.redis("ZRANGE", "sessions:index", -1, -1)
    text = re.sub(r"(--session |sessions/|session:)ID\b", rf"\g<1>{session.decode()}", text)
    return re.sub(r"\bID\b", found[0]["id"], text)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_commands_of_the_documentation_work(block: Block, grid: Grid, tmp_path: Path) -> None:
    if missing := [tool for tool in ("curl", "jq") if f"{tool} " in block.text and shutil.which(tool) is None]:
        pytest.skip(f"not installed: {missing[0]}")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with contextlib.closing(raw.session(grid.port, "/?browser=chromium")):
        text = with_ids(block.text, grid).replace(":8080", f":{grid.port}")
        done = subprocess.run(
            ["bash", "-e", "-x", "-o", "pipefail", "-c", text],
            cwd=tmp_path,
            env={**grid.environment, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, f"{block}:\n{done.stdout}\n{done.stderr}"
    assert not re.search(r'"id": ?null', done.stdout), f"{block} takes something from where it is not:\n{done.stdout}"


def test_there_are_such_commands() -> None:
    assert len(BLOCKS) >= 2
    assert all(block.page.is_relative_to(ROOT) for block in BLOCKS)


def test_the_page_of_the_api_names_every_route(grid: Grid) -> None:
    _, _, body = grid.get("/openapi.json")
    page = (ROOT / "docs/api.md").read_text()
    routes = [f"{method.upper()} {path}" for path, methods in json.loads(body)["paths"].items() for method in methods]
    assert [route for route in routes if not re.search(re.escape(route) + r"[`?]", page)] == []
    assert len(routes) > 7
