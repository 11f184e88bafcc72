"""The WebSockets of the grid's own page, with a fake browser server: what a page says is no error of the grid."""

import contextlib
import json

from websockets.sync.client import connect

from tests.support import raw
from tests.support.grid import running_grid

SENSELESS = ("", "{", "null", "7", "[]", '"x"', '{"page":7}', b"\xff\x00", b"{}")


def test_the_feed_goes_on_whatever_a_page_says() -> None:
    with (
        running_grid("--chromium", "1", fake=True) as grid,
        connect(f"{grid.endpoint}/v1/live") as socket,
    ):
        for each in SENSELESS:
            socket.send(each)
        with contextlib.closing(raw.session(grid.port)):
            while not json.loads(socket.recv(timeout=30)).get("set", {}).get("sessions"):
                pass
