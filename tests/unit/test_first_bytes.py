"""The patience with connections that say nothing."""

import asyncio
from typing import cast

from pwgrid.proxy.connect.first_bytes import Opening, Patience


class Silent:
    """Stands in for an opening: it notes when it was shut down."""

    def __init__(self, name: str, over: "asyncio.Queue[str]") -> None:
        self.name = name
        self._over = over

    def shutdown(self) -> None:
        self._over.put_nowait(self.name)


async def test_each_silent_connection_is_shut_down_in_its_turn_and_none_that_spoke() -> None:
    patience, over = Patience(0.01), asyncio.Queue[str]()
    first, second, spoke = (cast(Opening, Silent(name, over)) for name in ("first", "second", "spoke"))
    patience.begin(spoke)
    patience.begin(first)
    patience.end(spoke)
    patience.end(spoke)
    assert await over.get() == "first"
    patience.begin(second)  # the timer had come to rest
    assert await over.get() == "second"
    assert over.empty()
