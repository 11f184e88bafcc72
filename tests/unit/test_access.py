"""Who may use the grid, as whom, and who has to wait after wrong tokens."""

from collections.abc import Iterable
from typing import Any

import pytest
from websockets.datastructures import Headers

from pwgrid.proxy.policy import access as access_module
from pwgrid.proxy.policy.access import (
    ANYBODY,
    FAILURES_WITHIN_S,
    MAX_PEERS,
    MOST_FAILURES,
    OPERATORS_TOKEN,
    WRONG_OR_REVOKED,
    Access,
    FailedLogins,
    Identity,
)
from pwgrid.proxy.policy.arrival import Arrival
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.tokens.tokens import NAME, NO_TOKENS, Role, Token, Tokens, make, operators_token_id

CI, CI_TEXT = make("ci", Role.CLIENT, 3, ["appa", "appb"], 0.0)
OPS, OPS_TEXT = make("ops", Role.OPERATOR, 0, (), 0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def access(
    token: str = "", tokens: Iterable[Token] | None = (CI, OPS), clock: Clock | None = None, **more: Any
) -> Access:
    found = NO_TOKENS if tokens is None else Tokens(tokens)
    return Access(token, tokens=lambda: found, now=clock or Clock(), **more)


def ask(grid: Access, text: str = "", peer: str = "10.0.0.1", **headers: str) -> Identity:
    parameters = [("token", text)] if text else []
    given = Headers({"Host": "grid", **{name.replace("_", "-"): value for name, value in headers.items()}})
    return grid.check(given, parameters, ("10.0.0.9", 8080), Arrival(peer))


def refused(grid: Access, text: str = "", **more: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(grid, text, **more)
    return caught.value


def test_a_token_counts_by_query_bearer_and_hub_secret() -> None:
    expected = Identity("ci", Role.CLIENT, 3, frozenset({"appa", "appb"}), CI.id)
    assert ask(access(), CI_TEXT) == expected
    assert ask(access(), authorization=f"Bearer {CI_TEXT}") == expected
    assert ask(access(), authorization=f"bearer   {CI_TEXT} ") == expected
    assert ask(access(), x_hub_secret=CI_TEXT) == expected
    assert ask(access(), OPS_TEXT) == Identity("ops", Role.OPERATOR, token_id=OPS.id)
    assert refused(access(), authorization=f"Basic {CI_TEXT}").status == 401


def test_the_one_token_of_the_settings_is_an_operators_beside_the_others() -> None:
    grid = access("s3cret")
    assert ask(grid, "s3cret") == Identity(OPERATORS_TOKEN, Role.OPERATOR, token_id=operators_token_id("s3cret"))
    assert ask(grid, CI_TEXT).name == "ci"
    assert ask(access("s3cret", tokens=None), x_hub_secret="s3cret").is_operator
    assert not NAME.fullmatch(OPERATORS_TOKEN)  # no other token can be taken for it


def test_where_no_token_was_ever_made_everybody_is_an_operator() -> None:
    grid = access(tokens=None)
    assert ask(grid) is ANYBODY
    assert ANYBODY.is_operator


def test_a_file_without_tokens_and_a_public_grid_that_lost_it_let_nobody_in() -> None:
    for grid in (access(tokens=()), access(tokens=None, is_closed=True)):
        assert refused(grid).error.startswith("this grid asks for a token")
        assert refused(grid, CI_TEXT).error.startswith("the token is wrong, or was revoked")


def test_a_token_is_revoked_only_if_the_grid_would_not_take_it_now() -> None:
    found = [Tokens([CI, OPS])]
    grid = Access("s3cret", tokens=lambda: found[0], now=Clock())
    client, operator = ask(grid, CI_TEXT), ask(grid, "s3cret")
    assert grid.revoked(client) is None
    for later in (Tokens([OPS]), Tokens([make("ci", Role.CLIENT, 3, [], 0.0)[0]]), NO_TOKENS):
        found[0] = later
        refusal = grid.revoked(client)
        assert refusal is not None
        assert (refusal.status, refusal.error) == (
            401,
            refused(grid, CI_TEXT).error if later.are_there else WRONG_OR_REVOKED,
        )
        assert grid.revoked(operator) is None
        assert grid.revoked(ANYBODY) is None
    open_grid = access(tokens=None)
    assert open_grid.revoked(client) is None


def test_a_proxy_that_retires_takes_no_token_that_the_settings_have_no_more() -> None:
    """It may have clients that wait, kept connections and live views, which still come with the old one."""
    is_replaced = False
    grid = access("s3cret", is_token_replaced=lambda: is_replaced)
    operator, client = ask(grid, "s3cret"), ask(grid, CI_TEXT)
    assert grid.revoked(operator) is None
    is_replaced = True
    refusal = grid.revoked(operator)
    assert refusal is not None
    assert (refusal.status, refusal.error) == (401, WRONG_OR_REVOKED)
    for text in ("s3cret", "the new one", "wrong"):  # it knows no other: another proxy does
        refusal = refused(grid, text)
        assert (refusal.status, dict(refusal.headers)["Connection"]) == (503, "close")
        assert "connect again" in refusal.error
    assert grid.revoked(client) is None
    assert ask(grid, CI_TEXT) == client
    for _ in range(2 * MOST_FAILURES):
        assert refused(grid, "the new one").status == 503  # no wrong token


@pytest.mark.parametrize("token", ["a+b/c==", "a b", "a+b c"])
def test_a_token_with_a_plus_may_come_as_it_is_in_a_url(token: str) -> None:
    for text in (token, token.replace("+", " ")):  # what a URL's reader makes of it
        assert ask(access(token), text).is_operator
        assert ask(access(token), authorization=f"Bearer {text}").is_operator
    assert refused(access(token), token[1:]).status == 401


def test_the_id_of_the_settings_token_tells_it_from_others_and_does_not_show_it() -> None:
    ids = [operators_token_id(text) for text in ("s3cret", "s3cret ", "t")]
    assert len(set(ids)) == 3
    assert operators_token_id("s3cret") == ids[0]
    assert not any("s3cret" in each for each in ids)
    assert operators_token_id("") == ""


def test_a_token_may_use_its_own_pools_alone() -> None:
    identity = ask(access(), CI_TEXT)
    identity.check_pool("appa")
    with pytest.raises(Refusal, match="the token ci may not use the pool chromium: it may use appa, appb") as caught:
        identity.check_pool("chromium")
    assert caught.value.status == 403
    ask(access(), OPS_TEXT).check_pool("chromium")


# Wrong tokens


def test_after_some_wrong_tokens_a_peer_waits_and_others_do_not() -> None:
    clock = Clock()
    grid = access(clock=clock)
    for _ in range(MOST_FAILURES):
        assert refused(grid, "wrong").status == 401
        clock.now += 1
    answer = refused(grid, "wrong")
    assert (answer.status, dict(answer.headers)["Retry-After"]) == (429, str(int(FAILURES_WITHIN_S) - MOST_FAILURES))
    assert refused(grid, "wrong", peer="10.0.0.2").status == 401
    clock.now += FAILURES_WITHIN_S - MOST_FAILURES
    assert refused(grid, "wrong").status == 401
    assert refused(grid, "wrong").status == 429  # one more each time that one is old enough, no more


def test_a_token_that_nobody_can_guess_is_good_from_a_peer_that_waits_and_a_short_one_is_not() -> None:
    for token, status in (("s3cret", 429), ("x" * 16, None)):
        grid = access(token)
        for _ in range(MOST_FAILURES):
            refused(grid, "wrong")
        assert ask(grid, CI_TEXT).name == "ci"
        if status is None:
            assert ask(grid, token).is_operator
        else:
            assert refused(grid, token).status == status


def test_no_token_is_no_wrong_token() -> None:
    grid = access()
    for _ in range(3 * MOST_FAILURES):
        assert refused(grid).status == 401


def test_one_request_is_not_many_guesses() -> None:
    grid = access("s3cret")
    guesses = [("token", f"guess{n}") for n in range(100)]
    headers = Headers({"Host": "grid"})
    with pytest.raises(Refusal):
        grid.check(headers, [*guesses, ("token", "s3cret")], None, Arrival("10.0.0.1"))
    statuses = []
    for _ in range(MOST_FAILURES):
        with pytest.raises(Refusal) as caught:
            grid.check(headers, guesses, None, Arrival("10.0.0.1"))
        statuses.append(caught.value.status)
    assert statuses.count(401) == 3  # with the first one 12 guesses


def test_a_host_with_ipv6_is_one_peer_whatever_address_it_takes() -> None:
    failed = FailedLogins()
    for n in range(MOST_FAILURES):
        failed.note(f"2001:db8:1:2::{n}", 0.0)
    assert failed.wait_s("2001:db8:1:2:ffff::1", 1.0) == FAILURES_WITHIN_S - 1
    assert failed.wait_s("2001:db8:1:3::1", 1.0) == 0
    for _ in range(MOST_FAILURES):
        failed.note("::ffff:10.0.0.1", 0.0)
    assert failed.wait_s("10.0.0.1", 1.0) == FAILURES_WITHIN_S - 1


def test_what_is_remembered_of_peers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_PEERS < 1_000_000
    monkeypatch.setattr(access_module, "MAX_PEERS", 5)
    failed = FailedLogins()
    for n in range(1000):
        failed.note(f"10.0.{n // 256}.{n % 256}", 0.0)
    assert len(failed._failures) == 5
