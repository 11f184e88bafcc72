"""The rights that the ACL line gives are those that the scripts and the code use, no more and no fewer."""

import ast
import re
from pathlib import Path

from pwgrid.common.paths import resource_dir
from pwgrid.registry import rights
from pwgrid.registry.cluster_primary import QUESTIONS
from tests.support.grid import ROOT
from tests.support.redis import RedisServer

OF_REDIS_PY = {"ping", "select", "subscribe", "psubscribe"}
"""What redis-py sends by itself: for a URL with a database, for a subscription and its pings."""
OF_THE_TRIAL = {"discard", "multi"}
"""What only the trial of the rights sends."""


def of_scripts() -> set[str]:
    texts = [path.read_text() for path in resource_dir("lua").glob("*.lua")]
    return {name.lower() for text in texts for name in re.findall(r"\bp?call\('(\w+)'", text)}


def of_code(redis: RedisServer) -> set[str]:
    """Words of the code, all in capitals, that Redis knows as commands."""
    paths = [
        path
        for path in (ROOT / "grid" / "pwgrid" / "registry").glob("*.py")
        if path.stem not in ("rights", "fault_of", "cluster_primary")  # what the last one asks is QUESTIONS
    ]
    words = {
        node.value
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[A-Z]+", node.value)
    }
    known = {word.lower() for word in words} & redis.command("COMMAND").keys()
    return {"script|load" if name == "script" else name for name in known - {"hello"}}  # which no ACL can forbid


def test_the_commands_are_those_that_the_scripts_and_the_code_send(redis: RedisServer) -> None:
    used = of_scripts() | of_code(redis)
    assert len(of_scripts()) > 20
    assert set(rights.commands()) == used | OF_REDIS_PY | OF_THE_TRIAL
    of_cluster = set(rights.commands(of_cluster=True)) - set(rights.commands())
    assert of_cluster == {"|".join(words).lower() for words in QUESTIONS}
    assert not OF_REDIS_PY & of_scripts()


def test_each_key_that_is_allowed_is_one_of_the_scripts_or_the_records() -> None:
    """That no other key is used, the fixture `grid` sees after each test of a script."""
    texts = [path.read_text() for path in resource_dir("lua").glob("*.lua")]
    texts.append((ROOT / "grid" / "pwgrid" / "registry" / "records.py").read_text())
    assert [key for key in rights.KEYS if not any(key.rstrip("*") in text for text in texts)] == []


def test_no_other_module_sends_commands() -> None:
    """Those that get a client are known: they read through redis-py's own methods, or run redis-cli."""
    who = re.compile(r"open_(?:async|blocking)\(")
    found = {path.name for path in Path(ROOT, "grid").rglob("*.py") if who.search(path.read_text())}
    assert found == {"open_redis.py", "redis_client.py", "try_redis.py", "blocking_reads.py"}
