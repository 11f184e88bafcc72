"""How many there are of something, in sentences to users."""

from __future__ import annotations

import pytest

from pwgrid.common.wording import counted


@pytest.mark.parametrize(("count", "said"), [(0, "0 sessions"), (1, "1 session"), (2, "2 sessions")])
def test_a_noun_gets_its_plural(count: int, said: str) -> None:
    assert counted(count, "session") == said


@pytest.mark.parametrize(("count", "said"), [(1, "1 client waits"), (2, "2 clients wait")])
def test_another_plural_is_given(count: int, said: str) -> None:
    assert counted(count, "client waits", "clients wait") == said
