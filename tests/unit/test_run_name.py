"""The name that a client gives its run, and how it is refused."""

import pytest

from pwgrid.proxy.policy.connect_request import NAME_RULE, run_name
from pwgrid.proxy.policy.refusal import Refusal


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (" Smoke 12 ", "Smoke 12"),
        ("a.b_c-D 9", "a.b_c-D 9"),
        ("x" * 128, "x" * 128),
        (" " * 200, ""),
        ("", ""),
        (None, ""),
    ],
)
def test_the_name_of_a_run(text: str | None, name: str) -> None:
    assert run_name(text, "runName") == name


@pytest.mark.parametrize("text", ["x" * 129, "a/b", "a\nb", "<b>", "ü", "a:b", 'a"b', "a,b", "a\tb", "\U0001f600"])
def test_a_name_that_breaks_the_rule_is_400_with_the_rule_and_not_repeated(text: str) -> None:
    with pytest.raises(Refusal) as raised:
        run_name(text, "runName")
    assert (raised.value.status, raised.value.error) == (400, f"runName: use {NAME_RULE}")
