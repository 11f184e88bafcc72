"""All of tests/hostile/requests.py against a grid at once: each gets its answer, and nothing is left of them."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.conftest import counters_are_exact, need
from tests.hostile.requests import ROWS, Row
from tests.support.census import Census, at_rest, once_equal, told
from tests.support.grid import NEVER, running_grid
from tests.support.raw import PING, PONG

AT_ONCE = 50
LIMIT_S = 40
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass
class Attack:
    """What came of it."""

    answers: dict[str, list[int]]
    before: Census
    after: Census
    lines: list[str]
    """What the grid has logged meanwhile."""


async def answers_to(port: int, row: Row) -> list[int]:
    """The statuses that came, until the grid closed or a browser server had the session."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""

    async def read() -> None:
        nonlocal received
        while chunk := await reader.read(1 << 16):
            received += chunk
            if b" 101 " in received and received.endswith(b"\r\n\r\n"):
                writer.write(PING)
            if received.endswith(PONG):
                return

    reading = asyncio.create_task(read())
    try:
        for number, piece in enumerate(row.sent):
            if number:
                await asyncio.sleep(row.pause_s or 0.01)
            writer.write(piece)
            await writer.drain()
        await reading
    except ConnectionError:
        await asyncio.gather(reading, return_exceptions=True)
    finally:
        writer.close()
    return [int(status) for status in _STATUS.findall(received)]


async def all_answers(port: int) -> dict[str, list[int]]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(row: Row) -> tuple[str, list[int]]:
        async with places, asyncio.timeout(LIMIT_S):
            return row.name, await answers_to(port, row)

    return dict(await asyncio.gather(*map(one, ROWS)))


@pytest.fixture(scope="module")
def attack() -> Iterator[Attack]:
    need("chromium")
    environment = {"MAX_LIFETIME_SESSIONS": NEVER, "CANARY_INTERVAL": "600", "WORKER_SELECT_TIMEOUT": "30"}
    with running_grid("--chromium", "1", environment=environment) as grid:
        before, logged = at_rest(grid), len(grid.output())
        answers = asyncio.run(all_answers(grid.port))
        after = once_equal(grid, before)
        counters_are_exact(grid)
        yield Attack(answers, before, after, grid.output()[logged:].splitlines())


def test_there_are_enough_of_them() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 150


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_hostile_request_gets_its_answer(attack: Attack, row: Row) -> None:
    assert attack.answers[row.name] == row.answers


def test_slots_processes_and_open_files_are_as_before(attack: Attack) -> None:
    assert told(attack.before, attack.after) == ""


def test_the_log_has_a_few_lines_and_no_traceback(attack: Attack) -> None:
    events = Counter(line.split("] ", 1)[1].split(" ")[0] for line in attack.lines)
    served = sum(101 in row.answers for row in ROWS)
    refused = events.pop("connect_refused") + events.pop("connects_refused")
    assert events.pop("forwarded_headers_ignored") == 1  # once for the host that sends such fields
    assert set(events) <= {"session_started", "session_ended"}, attack.lines
    assert all(count == served for count in events.values())
    # One line for each status, and one more for each ten seconds in which it went on: not one for each of hundreds.
    assert refused <= 20
    assert all(line.isprintable() for line in attack.lines)
