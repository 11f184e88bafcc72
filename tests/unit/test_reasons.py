"""Reasons are values: no code reads the sentences that are made of them. One table has those for which sessions end:
what is said elsewhere is in it, and the docs have all of it."""

import ast
import re
from pathlib import Path

import pytest

from pwgrid.common import reasons
from pwgrid.common.reasons import EndReason, Reason, WorkerEnd, of_sessions

ROOT = Path(__file__).resolve().parents[2]
REASONS = {reason.value for reason in EndReason}


def test_the_docs_name_every_reason_and_no_other() -> None:
    table = (ROOT / "docs/lifecycle.md").read_text().partition("| reason | status | when |\n|---|---|---|\n")[2]
    rows = table.partition("\n\n")[0].splitlines()
    named = [reason for row in rows for reason in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert set(named) == REASONS
    assert len(named) == len(REASONS)


def test_what_the_launcher_says_is_in_the_table() -> None:
    folder = ROOT / "grid/pwgrid/worker/browser"
    text = "".join(path.read_text() for path in folder.rglob("*.cjs"))
    said = set(re.findall(r"(?:end|endAll|fail|reasonIs)\('\w+', '([^']+)'", text)) | set(
        re.findall(r"refuse\(connection, '\w+', '([^']+)'", text)
    )
    assert {"ping timeout", "idle timeout", "browser crashed", "worker stopped", "handshake refused"} <= said
    assert said <= REASONS


def test_what_the_scripts_say_is_in_the_table() -> None:
    said = {
        reason
        for path in (ROOT / "lua").glob("*.lua")
        for reason in re.findall(r"'(?:failed|expired)', '([^']+)'", path.read_text())
    }
    assert said == {"lost by worker", "lease expired"}
    assert said <= REASONS


READS_TEXT = {
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "partition",
    "rpartition",
    "split",
    "find",
    "index",
}
READS_TEXT |= {"match", "fullmatch", "search", "findall", "sub"}


def _is_a_sentence(node: ast.expr) -> bool:
    """An expression whose text is a reason's: `x.reason`, `x["reason"]`, `reason`, or str() of these."""
    match node:
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return _is_a_sentence(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Subscript(slice=ast.Constant(value=name)):
            return name == "reason"
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=name), *_]):
            return name == "reason"
    return False


def _is_wording(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value for each in ast.walk(node))


def _reads(tree: ast.AST) -> list[str]:
    """Where a sentence is compared with words, or matched."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            wrong = any(map(_is_a_sentence, sides)) and any(
                _is_wording(each) for each in sides if not _is_a_sentence(each)
            )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READS_TEXT:
            wrong = any(_is_a_sentence(each) for each in (node.func.value, *node.args))
        elif isinstance(node, ast.Match):
            wrong = _is_a_sentence(node.subject)
        else:
            continue
        if wrong:
            found.append(f"{node.lineno}: {ast.unparse(node).splitlines()[0]}")
    return found


@pytest.mark.parametrize(
    "code",
    [
        "x.reason == 'memory'",
        "'hung' in worker['reason']",
        "str(x.reason).startswith('drain')",
        "re.match('a', reason)",
    ],
)
def test_the_rule_finds_who_reads_a_sentence(code: str) -> None:
    assert _reads(ast.parse(code))


def test_no_module_compares_or_matches_a_sentence() -> None:
    files = sorted((ROOT / "grid").rglob("*.py"))
    wrong = [f"{file.relative_to(ROOT)}:{read}" for file in files for read in _reads(ast.parse(file.read_text()))]
    assert len(files) > 100
    assert wrong == []


def test_no_script_reads_a_sentence() -> None:
    for file in (ROOT / "lua").glob("*.lua"):
        assert not re.findall(r"(?:match|find|gsub)\(reason|\breason *[=~]=", file.read_text()), file.name


def test_other_words_change_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Reason(WorkerEnd.WORKER_ENDED, "SIGKILL", "SIGKILL")
    before = (lost.as_data(), of_sessions(lost).kind, str(lost))
    monkeypatch.setattr(reasons, "_SENTENCES", {})
    assert (lost.as_data(), of_sessions(lost).kind) == before[:2]
    assert str(lost) != before[2]


def test_a_kind_of_another_version_is_other() -> None:
    assert Reason.read({"kind": "its dog ate it", "detail": "all"}, Reason(EndReason.TOO_LATE)).kind is EndReason.OTHER
    assert Reason.read(None, Reason(EndReason.TOO_LATE)) == Reason(EndReason.TOO_LATE)
    assert Reason.read({"kind": "memory limit"}, Reason(WorkerEnd.NOT_SAID)).kind is WorkerEnd.MEMORY_LIMIT
