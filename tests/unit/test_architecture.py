"""The table "Where do I find" of docs/architecture.md names files and functions that there are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TABLE = (ROOT / "docs/architecture.md").read_text().split("## Where do I find")[1].split("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in _TABLE.splitlines() if line.startswith("|")][
    2:
]


def test_the_table_has_at_least_25_behaviours() -> None:
    assert len(ROWS) >= 25


@pytest.mark.parametrize(("behaviour", "files", "function"), ROWS, ids=[row[0] for row in ROWS])
def test_a_behaviour_is_where_the_table_says(behaviour: str, files: str, function: str) -> None:
    paths = [
        ROOT / name if name.startswith("lua/") else ROOT / "grid/pwgrid" / name
        for name in re.findall("`([^`]+)`", files)
    ]
    assert all(path.is_file() for path in paths), (behaviour, files)
    assert function.strip("`") in set(_definitions(paths[0])), (behaviour, function)


def _definitions(path: Path) -> Iterator[str]:
    if path.suffix == ".cjs":
        yield from re.findall(r"^(?:class|function) (\w+)", path.read_text(), re.MULTILINE)
        return
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            if isinstance(node, ast.ClassDef):
                yield from (
                    f"{node.name}.{each.name}"
                    for each in node.body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                )
