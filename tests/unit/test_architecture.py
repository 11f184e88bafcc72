"""docs/architecture.md names files and functions that there are: where behaviours are, and where the concepts are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TEXT = (ROOT / "docs/architecture.md").read_text()
MOST_ROWS = 30
"""More would hide what folder names do not tell."""


def _rows(heading: str) -> list[list[str]]:
    section = _TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ][2:]


ROWS = _rows("Where do I find")
CONCEPTS = _rows("Six concepts")


def test_the_table_is_short_and_there() -> None:
    assert MOST_ROWS // 2 <= len(ROWS) <= MOST_ROWS


@pytest.mark.parametrize(("behaviour", "files", "function"), ROWS, ids=[row[0] for row in ROWS])
def test_a_behaviour_is_where_the_table_says(behaviour: str, files: str, function: str) -> None:
    paths = [_path(name) for name in re.findall("`([^`]+)`", files)]
    assert all(path.is_file() for path in paths), (behaviour, files)
    assert function.strip("`") in set(_definitions(paths[0])), (behaviour, function)


def test_there_are_six_concepts() -> None:
    assert [row[0] for row in CONCEPTS] == ["pool", "claim", "placement", "door", "holder", "unit and front"]


@pytest.mark.parametrize(("concept", "where"), [(row[0], row[2]) for row in CONCEPTS])
def test_a_concept_is_in_files_that_there_are(concept: str, where: str) -> None:
    names = re.findall("`([^`]+)`", where)
    assert names, concept
    assert all(_path(name).exists() for name in names), (concept, where)


def test_a_folder_of_what_runs_in_node_needs_only_those_before_it() -> None:
    home = ROOT / "grid/pwgrid/worker/browser"
    shown = _TEXT.split("```\ngrid/pwgrid/worker/browser/\n")[1].split("```")[0]
    order = re.findall(r"^  (\w+)/", shown, re.MULTILINE)
    assert set(order) == {path.parent.name for path in home.rglob("*.cjs")} - {home.name}
    for folder in order:
        for path in (home / folder).glob("*.cjs"):
            needed = re.findall(r"require\('\.\./(\w+)/", path.read_text())
            assert {*needed} <= {*order[: order.index(folder)]}, path


def _path(name: str) -> Path:
    return ROOT / name if name.startswith("lua/") else ROOT / "grid/pwgrid" / name


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
