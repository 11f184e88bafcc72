"""What of a client goes to another host, and what its worker gets there."""

import pytest

from pwgrid.proxy.connect.first_bytes import is_upgrade, parse_head
from pwgrid.proxy.policy.forward_message import forward_in, head, incoming, outgoing, question_head

ID = "0123456789abcdef" * 2


def test_the_worker_gets_what_it_would_have_got_here_with_times_of_its_own_host() -> None:
    """The clock there says something else."""
    told = {"client": "1.2.3.4:5", "until": 160.0, "own": {"options": {"a": 1}, "network": "", "until": 130.0}}
    sent = outgoing(told, now=100.0)
    assert incoming(sent, now=7.0) == {**told, "until": 67.0, "own": {**told["own"], "until": 37.0}}  # type: ignore[dict-item]


def test_what_has_no_times_stays_as_it_is() -> None:
    told = {"lease": ["id", "secret"], "keep": 3.0}
    assert outgoing(told, 5.0) == told == incoming(told, 9.0)


@pytest.mark.parametrize("left", [3, "x", {"until": "soon"}, {"until": None}])
def test_times_that_make_no_sense_are_refused(left: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        incoming({"left": left}, 1.0)


@pytest.mark.parametrize(
    ("path", "forward_id"),
    [
        (f"/forwarded/{ID}", ID),
        ("/forwarded/", ""),
        (f"/forwarded/{ID}0", ""),
        (f"/forwarded/{ID[:-1]}*", ""),
        ("/forwarded", None),
        ("/", None),
        (f"/lease/forwarded/{ID}", None),
    ],
)
def test_a_path_names_a_forward_or_not(path: str, forward_id: str | None) -> None:
    assert forward_in(path) == forward_id


def test_the_other_host_gets_a_whole_upgrade_head_with_the_client_s_handshake_and_nothing_else_of_it() -> None:
    headers = {
        "host": "localhost",
        "user-agent": "Playwright/1.65.1",
        "sec-websocket-key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        "sec-websocket-version": "13",
        "sec-websocket-extensions": "permessage-deflate",
    }
    text = head(ID, "10.0.0.2:8080", headers).encode()
    assert is_upgrade(text)
    request, _ = parse_head(text)
    assert request.path == f"/forwarded/{ID}"
    assert dict(request.headers.raw_items()) == {
        "Host": "10.0.0.2:8080",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "sec-websocket-key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        "sec-websocket-version": "13",
        "sec-websocket-extensions": "permessage-deflate",
    }


def test_a_question_s_request_has_no_body_and_ends_its_connection() -> None:
    assert question_head(ID, "[fd00::1]:80") == (
        f"POST /forwarded/{ID} HTTP/1.1\r\nHost: [fd00::1]:80\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    )
