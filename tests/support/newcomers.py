"""Raw clients that come and go, one after the other, while a test breaks something."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.support.grid import eventually

PAUSE_S = 0.02


@dataclass
class Newcomers:
    """`comes` is what one of them does; what it raises counts as a refusal."""

    comes: Callable[[], None]
    came: int = 0
    refused: list[str] = field(default_factory=list)
    _are_enough: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def at_the_door(self) -> Iterator[None]:
        thread = threading.Thread(target=self._come)
        thread.start()
        try:
            yield
        finally:
            self._are_enough.set()
            thread.join()

    def go_on(self, clients: int) -> None:
        """Returns when so many more have come."""
        before = self.came
        eventually(lambda: self.came >= before + clients or self.refused, "clients come")
        assert self.refused == []

    def _come(self) -> None:
        while not self._are_enough.wait(PAUSE_S):
            try:
                self.comes()
                self.came += 1
            except (OSError, AssertionError) as error:
                self.refused.append(repr(error))
