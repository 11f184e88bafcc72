"""The profiles of this worker's sessions: copied for them when they begin, saved when they have ended in order.

All copying is done in threads: other sessions do not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from pwgrid.common.errors import GridError
from pwgrid.common.launch_failure import BrowserLaunchError
from pwgrid.common.profile_names import NotSaved, Profile, ProfileUse
from pwgrid.profiles.paths import profiles_directory
from pwgrid.profiles.store import ProfileStore
from pwgrid.registry.records import NAME, RUN
from pwgrid.runtime.child_arguments import WorkerArguments
from pwgrid.worker.browser.confined_paths import Directories
from pwgrid.worker.holders import Lease, LiveSession, ProfileCopy

log = structlog.get_logger()

COPY_S: Final = 30.0
"""How long a copy may take; then the profile is not had, or not saved."""

_THREADS: Final = 4
_WHAT: Final = "a browser with a profile"

T = TypeVar("T")


class SessionProfiles:
    """What becomes of each profile of a session, or of a lease and its sessions. The file of a profile names the
    browser server as its user: the session outlives this process."""

    def __init__(self, boot: WorkerArguments) -> None:
        self._settings = boot.settings
        self._worker_id = boot.worker_id
        self._own = Directories(boot.directory).own
        self._threads = ThreadPoolExecutor(_THREADS, "profile")
        self._taking: dict[str, asyncio.Future[None]] = {}
        """By their sessions' ids, those that are being copied for them."""
        self._copies: dict[str, ProfileCopy] = {}
        """Of live sessions."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_taken: Callable[[], None] = lambda: None
        """Called when a session or lease is about to get a profile, which is to be saved in the end."""

    async def take(self, session: LiveSession, profile: Profile, pid: int, until: float) -> ProfileCopy:
        """Copies a profile for a session of the browser server `pid`; with a lease, what that has. `until` is in
        seconds of time.monotonic(). Raises ProfileInUse, TooManyProfiles and BrowserLaunchError; after those, and after
        its cancellation, `drop` is to be called."""
        fields = session.client_fields
        use = ProfileUse(session.id, time.time(), fields.get(NAME, ""), fields.get(RUN, ""))
        copy = ProfileCopy(profile, self._own / f"profile-{session.id}")
        self._copies[session.id] = copy
        self.on_taken()

        def work() -> None:
            store = self._store()
            if not session.lease_id:
                store.take(profile, use, pid, self._settings.profiles_max)
            store.unpack(profile, copy.directory)

        self._taking[session.id] = taking = self._in_thread(work)
        try:
            async with asyncio.timeout(min(COPY_S, until - time.monotonic())):
                await asyncio.shield(taking)
        except TimeoutError:
            raise BrowserLaunchError(f"profile {profile.name}: its copy was not there in time", _WHAT) from None
        except (OSError, GridError, tarfile.TarError) as error:
            raise BrowserLaunchError(f"profile {profile.name}: {_why(error)}", _WHAT) from None
        return copy

    async def take_for_lease(self, lease: Lease, profile: Profile, pid: int) -> None:
        """Gives a profile to this lease, and to nobody else until `let_lease_go`, or the end of the browser server
        `pid`. Raises ProfileInUse, TooManyProfiles, OSError and GridError."""
        self.on_taken()
        use, most = self._use_of_lease(lease), self._settings.profiles_max
        await self._in_thread(lambda: self._store().take(profile, use, pid, most))

    def lease_ends(self, lease: Lease, pid: int) -> None:
        """Called when the session of a lease that is over begins to end: as `ends`."""
        if lease.profile is not None:
            self._note_end(lease.profile, self._holder("", lease.id), pid)

    def let_lease_go(self, lease: Lease) -> None:
        """Called when a lease is over, or was never kept: nobody has its profile any more."""
        if (profile := lease.profile) is not None:
            holder = self._holder("", lease.id)
            self._start(self._done(lambda: self._store().let_go(profile, holder)))

    def _use_of_lease(self, lease: Lease) -> ProfileUse:
        fields, since = lease.client_fields, lease.started_at or time.time()
        return ProfileUse(self._holder("", lease.id), since, fields.get(NAME, ""), fields.get(RUN, ""), is_lease=True)

    def _holder(self, session_id: str, lease_id: str) -> str:
        """Whom the file of a profile names: the lease, if the session came with one."""
        return f"{self._worker_id}-{lease_id}" if lease_id else session_id

    def adopt(self, copies: dict[str, ProfileCopy], leases: Iterable[str], pid: int) -> None:
        """Takes over what the predecessor of this worker had, in the browser server `pid`, also for these leases.
        Sessions that it began and that are not there have no profile any more."""
        self._copies.update(copies)
        if self._settings.profiles != "off":
            self._start(self._let_go_others(pid, {*copies, *(self._holder("", each) for each in leases)}))

    def ends(self, session_id: str, pid: int) -> None:
        """Called when the session has lost its last client, and its browser begins to end: who asks for the profile now
        waits for that. `pid`: of the browser server."""
        if (copy := self._copies.get(session_id)) is not None:
            self._note_end(copy.profile, session_id, pid)

    def has(self, session_id: str) -> bool:
        return session_id in self._copies

    @property
    def has_any(self) -> bool:
        """Whether a session has one that is not being saved yet."""
        return bool(self._copies)

    def drop(self, session_id: str) -> None:
        """Nothing is saved of this session, if it has a profile at all."""
        if (copy := self._copies.pop(session_id, None)) is not None:
            self._start(self._let_go(copy.profile, session_id, copy.directory))

    async def save(self, session_id: str, copy: ProfileCopy, lease_id: str, *, is_in_order: bool) -> str:
        """Saves the profile of a session whose browser has ended, and gives it free unless a lease has it. Returns why
        it was not saved, or "". `is_in_order`: its browser has ended by itself when it was told to, so that all is
        written."""
        self._copies.pop(session_id, None)
        profile, late, holder = copy.profile, threading.Event(), self._holder(session_id, lease_id)
        why = "" if is_in_order else "its browser did not end in order"
        if is_in_order:
            saving = self._in_thread(
                lambda: self._store().save(profile, holder, copy.directory, self._settings.profile_max_mib, late.is_set)
            )
            try:
                async with asyncio.timeout(COPY_S):
                    size = await asyncio.shield(saving)
                log.info("profile_saved", session=session_id, profile=profile.name, bytes=size)
            except TimeoutError:
                late.set()
                why = f"it took longer than {COPY_S:g} s"
            except (NotSaved, OSError, GridError) as error:
                why = _why(error)
        if why:
            log.warning("profile_not_saved", session=session_id, profile=profile.name, reason=why)
        await self._let_go(profile, session_id, copy.directory)
        return why

    async def settled(self) -> None:
        """Returns once every profile is given free, or after COPY_S."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=COPY_S)

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _note_end(self, profile: Profile, holder: str, pid: int) -> None:
        # The browser server may outlive this process, whose successor saves then. This process outlives it in a stop.
        self._start(self._done(lambda: self._store().ends(profile, holder, pid, os.getpid())))

    async def _let_go(self, profile: Profile, session_id: str, directory: Path) -> None:
        if (taking := self._taking.pop(session_id, None)) is not None:
            await asyncio.wait([taking])

        def work() -> None:
            _remove(directory)
            self._store().let_go(profile, session_id)

        await self._done(work)

    async def _let_go_others(self, pid: int, sessions: Collection[str]) -> None:
        def work() -> None:
            store = self._store()
            for each in store.used_by(pid):
                if each.use is not None and each.use.session not in sessions:
                    _remove(self._own / f"profile-{each.use.session}")
                    store.let_go(each.profile, each.use.session)

        await self._done(work)

    async def _done(self, work: Callable[[], None]) -> None:
        """Does what concerns one profile alone, and is not worth more than a line in the log where it fails."""
        try:
            await self._in_thread(work)
        except (OSError, GridError) as error:
            log.error("profile_not_given_free", error=_why(error))

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _store(self) -> ProfileStore:
        return ProfileStore(profiles_directory(self._settings))


def _remove(directory: Path) -> None:
    """Removes a copy. If this process is killed meanwhile its successor, which may save it once more, finds none rather
    than a part of one."""
    gone = directory.with_name(f"{directory.name}.gone")
    with contextlib.suppress(OSError):
        directory.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'its directory'} cannot be read or written: {error.strerror or error}"
    return str(error)
