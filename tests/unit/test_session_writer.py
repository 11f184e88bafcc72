"""What is kept for a Redis that is away: in order, merged, bounded, and told to nobody before it is written."""

import asyncio
from dataclasses import replace

import pytest

from pwgrid.common.errors import RegistryError, RegistryUnavailable
from pwgrid.common.reasons import EndReason, Reason
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.registry import session_writer
from pwgrid.registry.session_update import SessionEnd, SessionUpdate
from pwgrid.registry.session_writer import SessionRecordWriter


class Registry:
    """Stands in for Redis: it can be away, refuse a session for good, and keep its answers back."""

    def __init__(self) -> None:
        self.away = False
        self.refused: set[str] = set()
        self.written: list[SessionUpdate] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def write(self, update: SessionUpdate) -> None:
        away = self.away
        await self.answers.wait()
        if away or self.away:
            raise RegistryUnavailable("away")
        if update.session_id in self.refused:
            raise RegistryError("WRONGTYPE")
        self.written.append(update)

    def told(self) -> list[str]:
        return [each.session_id + ("." if each.end else "") for each in self.written]


class Slow(Registry):
    """Answers each write after so many seconds."""

    TAKES_S = 0.02

    async def write(self, update: SessionUpdate) -> None:
        if not self.away:
            await asyncio.sleep(self.TAKES_S)
        await super().write(update)


def runs(session_id: str) -> SessionUpdate:
    return SessionUpdate(session_id, 1.0, "client")


def ended(session_id: str, reason: str = "why") -> SessionUpdate:
    end = SessionEnd(SessionStatus.COMPLETED, Reason(EndReason.OTHER, reason), 2.0, 3, 4)
    return SessionUpdate(session_id, 1.0, "client", end)


async def away(writer: SessionRecordWriter, registry: Registry, *updates: SessionUpdate) -> None:
    """Redis goes away, and these are noted one after the other."""
    registry.away = True
    for update in updates:
        writer.note(update)
        assert not await writer.flush()


async def test_writes_are_made_at_once_and_in_order() -> None:
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    for update in (runs("a"), ended("a"), runs("b")):
        writer.note(update)
    assert await writer.flush()
    assert registry.told() == ["a", "a.", "b"]


async def test_each_update_that_is_kept_is_told_once_and_one_that_is_written_is_not() -> None:
    registry, kept = Registry(), list[SessionUpdate]()
    writer = SessionRecordWriter(registry.write, kept.append)
    writer.note(runs("a"))
    assert await writer.flush()
    await away(writer, registry, runs("b"), ended("b"), ended("a"))
    assert kept == [runs("b"), ended("b"), ended("a")]
    registry.away = False
    assert await writer.flush()
    assert len(kept) == 3


async def test_what_is_kept_is_written_before_anything_newer() -> None:
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    await away(writer, registry, runs("a"), runs("b"))
    registry.away = False
    writer.note(runs("c"))
    assert await writer.flush()
    writer.note(runs("d"))
    assert await writer.flush()
    assert registry.told() == ["a", "b", "c", "d"]


async def test_a_start_and_an_end_become_one_write() -> None:
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    await away(writer, registry, runs("a"), runs("b"), ended("a"))
    registry.away = False
    assert await writer.flush()
    assert registry.written == [ended("a"), runs("b")]


async def test_an_end_stays_an_end_whatever_is_said_later() -> None:
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    end = replace(ended("a"), started_at=None, client="")
    await away(writer, registry, end, runs("a"), ended("a", "another"))
    registry.away = False
    assert await writer.flush()
    assert registry.written == [ended("a")]


async def test_of_too_many_the_oldest_that_only_run_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_writer, "MAX_UNWRITTEN", 3)
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    await away(writer, registry, ended("a"), runs("b"), runs("c"), ended("d"), ended("e"), ended("c"))
    registry.away = False
    assert await writer.flush()
    assert registry.told() == ["d.", "e.", "c."]


async def test_who_waits_for_a_record_is_told_once_redis_has_it_or_never_will(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_writer, "MAX_UNWRITTEN", 2)
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    told: list[str] = []
    registry.away = True
    registry.refused = {"refused"}
    for name in ("dropped", "refused", "kept"):
        writer.note(ended(name), lambda name=name: told.append(name))  # type: ignore[misc]
        assert not await writer.flush()
    assert told == ["dropped"]
    registry.away = False
    assert await writer.flush()
    assert told == ["dropped", "refused", "kept"]
    writer.note(ended("now"), lambda: told.append("now"))
    assert await writer.flush()
    assert told[3:] == ["now"]
    assert registry.told() == ["kept.", "now."]


async def test_both_who_wait_for_the_record_of_one_session_are_told() -> None:
    """A browser server may tell of an end twice."""
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    told: list[int] = []
    registry.away = True
    for number in (1, 2):
        writer.note(ended("a"), lambda number=number: told.append(number))  # type: ignore[misc]
    assert not await writer.flush()
    registry.away = False
    assert await writer.flush()
    assert told == [1, 2]


async def test_a_write_that_redis_will_never_take_does_not_block_the_others() -> None:
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    registry.refused = {"poison"}
    await away(writer, registry, runs("a"), ended("poison"), runs("b"))
    registry.away = False
    assert await writer.flush()
    assert registry.told() == ["a", "b"]


async def test_two_flushes_at_once_make_each_write_once() -> None:
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    await away(writer, registry, *(runs(name) for name in "abc"))
    registry.away = False
    assert await asyncio.gather(writer.flush(), writer.flush()) == [True, True]
    assert registry.told() == ["a", "b", "c"]


async def test_more_than_one_batch_is_written() -> None:
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    updates = [ended(f"{number:03}") for number in range(200)]
    for update in updates:
        writer.keep(update)
    assert await writer.flush()
    assert registry.written == updates


async def test_an_end_that_comes_while_its_start_is_written_is_written_after_it() -> None:
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    await away(writer, registry, runs("a"))
    registry.away = False
    registry.answers.clear()
    flushing = asyncio.create_task(writer.flush())
    await asyncio.sleep(0)
    writer.note(ended("a"))
    registry.answers.set()
    assert await flushing
    assert registry.told() == ["a", "a."]


async def test_what_redis_did_not_answer_is_written_again_with_what_came_meanwhile() -> None:
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    await away(writer, registry, runs("a"), runs("b"))
    registry.away = False
    registry.answers.clear()
    flushing = asyncio.create_task(writer.flush())
    await asyncio.sleep(0)
    writer.note(ended("b"))
    writer.note(runs("c"))
    registry.away = True
    registry.answers.set()
    assert not await flushing
    assert writer.unwritten() == [runs("a"), ended("b"), runs("c")]
    registry.away = False
    assert await writer.flush()
    assert registry.told() == ["a", "b.", "c"]


async def test_who_gives_up_waiting_loses_nothing() -> None:
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    await away(writer, registry, runs("a"), ended("b"))
    registry.away = False
    registry.answers.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await writer.flush()
    assert writer.unwritten() == [runs("a"), ended("b")]
    registry.answers.set()
    assert await writer.flush()
    assert registry.told() == ["a", "b."]


async def test_what_was_noted_before_is_waited_for_and_what_comes_meanwhile_is_not() -> None:
    """Else a worker with many short sessions and a slow Redis would send no heartbeat."""
    for is_kept_first in (False, True):
        registry = Slow()
        writer = SessionRecordWriter(registry.write)
        if is_kept_first:
            await away(writer, registry, ended("before"))
            registry.away = False
        else:
            writer.note(ended("before"))
        so_far = asyncio.create_task(writer.flush_so_far())
        everything = asyncio.create_task(writer.flush())
        for number in range(50):
            await asyncio.sleep(registry.TAKES_S / 10)
            writer.note(ended(f"{number:02}"))
        assert so_far.done()
        assert await so_far
        assert not everything.done()
        assert await everything
        assert registry.told() == ["before.", *(f"{number:02}." for number in range(50))]


async def test_what_is_under_way_is_not_written_yet() -> None:
    registry = Registry()
    writer = SessionRecordWriter(registry.write)
    registry.answers.clear()
    writer.note(runs("a"))
    writer.note(ended("a"))
    assert writer.unwritten() == [ended("a")]
    registry.answers.set()
    assert await writer.flush()
    assert writer.unwritten() == []


def test_an_end_is_of_the_same_client_as_the_start() -> None:
    assert SessionUpdate("a", client_fields={"token": "ci"}).merged(ended("a")).client_fields == {"token": "ci"}
    assert ended("a").merged(SessionUpdate("a", client_fields={"token": "ci"})).client_fields == {"token": "ci"}
