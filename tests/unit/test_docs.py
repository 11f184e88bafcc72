"""Every block of the documentation is run by a test or says why not, every link leads somewhere, no page is lost."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from pwgrid.proxy.api.app import create_app
from pwgrid.proxy.policy.access import Access
from pwgrid.settings.model import SETTINGS
from tests.support.docs import INDEX, PAGES, Block, anchors, blocks, links, listed
from tests.support.grid import ROOT
from tests.support.recipes import lines

BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN_HERE = ("sh",)
"""Blocks in this language, without a mark, are run by tests/process/test_docs.py."""

_TEST = re.compile(r"(tests/\S+\.py)::(\w+)")
_PART = re.compile(r"`(\w+)` in `([\w/]+\.\w+)`")


def named(*marks: str) -> list[Block]:
    return [block for block in BLOCKS if block.mark in marks]


@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.mark], ids=str)
def test_a_block_without_a_mark_is_run_or_is_no_code(block: Block) -> None:
    if block.language in ("", "text"):
        assert not re.search(r"^(\$|make|pip|pwgrid) ", block.text, re.MULTILINE), f"{block}: these are commands"
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "json":
        json.loads(block.text)
    else:
        assert block.language in RUN_HERE, (
            f"{block}: say before it which test runs it (<!-- run by: tests/….py::test_… -->), or why none does "
            "(<!-- not run: … -->)"
        )


@pytest.mark.parametrize("block", named("not run"), ids=str)
def test_a_block_that_is_not_run_says_why(block: Block) -> None:
    assert len(block.about.split()) >= 3


@pytest.mark.parametrize("block", named("run by", "checked by"), ids=str)
def test_a_test_that_is_said_to_run_a_block_is_there_and_reads_it(block: Block) -> None:
    tests = _TEST.findall(block.about)
    assert tests, f"{block}: {block.about}"
    for path, name in tests:
        source = (ROOT / path).read_text()
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{block}: {path} has no {name}"
        assert f'"{block.page.name}"' in source, f"{path} reads no {block.page.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_the_project_s_own_files_leads_somewhere(page: Path) -> None:
    wrong = []
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            wrong.append(target)
    assert wrong == []


def test_what_a_page_says_is_in_a_file_of_ours_is_there() -> None:
    """Such as: `EndReason` in `pwgrid/common/session_lifecycle.py`."""
    said, wrong = 0, []
    for page in PAGES:
        for name, path in _PART.findall(page.read_text()):
            root = next(
                (each for each in (ROOT, ROOT / "grid", ROOT / "grid/pwgrid") if (each / path.split("/")[0]).is_dir()),
                None,
            )
            if root is None:  # another project's file
                continue
            said += 1
            if not (root / path).is_file() or not re.search(rf"\b{name}\b", (root / path).read_text()):
                wrong.append(f"{page.name}: {name} in {path}")
    assert said
    assert wrong == []


def test_the_index_lists_every_page_once_and_nothing_else() -> None:
    pages = {page.name for page in INDEX.parent.glob("*.md")} - {INDEX.name}
    assert sorted(page.name for page in listed()) == sorted(pages)


def test_every_path_of_the_api_that_a_page_names_is_one() -> None:
    """An orchestrator that asks for another one gets a 404 for ever, and ends a grid that is healthy."""
    app = create_app(None, Access())  # type: ignore[arg-type] # no route is called
    web_sockets = ["/v1/live", "/v1/live/{id}", "/v1/live/forwarded/{id}"]  # OpenAPI knows none
    there = {re.sub(r"\{\w+\}", "ID", path) for path in [*app.openapi()["paths"], *web_sockets]}
    named = [
        (page.name, path)
        for page in INDEX.parent.glob("*.md")
        for path in re.findall(r"(?<![\w./~-])/(?:health\b|(?:v1|session)(?=/\w))(?:/[\w{}-]+)*", page.read_text())
    ]
    wrong = [(page, path) for page, path in named if re.sub(r"\{\w+\}", "ID", path) not in there]
    assert wrong == []
    assert len(named) > 30


# Pipelines


def pipeline(name: str) -> Block:
    """The block of docs/ci.md whose text says by its first line whose it is."""
    (found,) = [block for block in blocks(ROOT / "docs/ci.md") if block.text.startswith((f"# {name}", f"// {name}"))]
    return found


@pytest.mark.parametrize(("name", "schema"), [("github", "vendor.github-workflows"), ("gitlab", "vendor.gitlab-ci")])
def test_a_pipeline_of_ci_md_is_what_its_service_takes(name: str, schema: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text(pipeline(name).text)
    done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, str(file)])
    assert done.exit_code == 0, done.output
    file.write_text(pipeline(name).text.replace("script:", "skript:").replace("runs-on:", "runs-at:"))
    assert CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, str(file)]).exit_code == 1


@pytest.mark.parametrize("name", ["github", "gitlab", "jenkins"])
def test_the_pipelines_of_ci_md_run_what_the_recipes_run(name: str) -> None:
    text = pipeline(name).text
    assert text.count("{") == text.count("}")
    (command,) = re.findall(r"pwgrid run .*?(?=['\n])", text)
    assert command in lines("ci.md", "pwgrid run")  # tests/e2e/test_recipes.py runs these
    assert shlex.split("pwgrid setup --chromium 1") == shlex.split(re.findall(r"pwgrid setup .*?(?=['\n])", text)[0])


def test_the_settings_that_no_reload_changes_are_named_where_a_reload_is_explained() -> None:
    (sentence,) = re.findall(r"(`host`,\s[^.]*?) cannot change", (ROOT / "docs/faults.md").read_text())
    named_so = re.findall(r"`([\w*]+)`", sentence)
    fixed = [name for name, each in SETTINGS.items() if "fixed" in each.concerns]
    assert [name for name in fixed if not any(fnmatchcase(name, each) for each in named_so)] == []
    assert [each for each in named_so if not any(fnmatchcase(name, each) for name in fixed)] == []
