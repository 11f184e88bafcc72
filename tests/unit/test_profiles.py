"""Profiles on disk: who has one, what is saved of a browser's directory, and what never spoils what was saved."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pwgrid.common.profile_names import NotSaved, Profile, ProfileInUse, ProfileUse, TooManyProfiles
from pwgrid.profiles.paths import profiles_directory
from pwgrid.profiles.store import ProfileStore
from pwgrid.proxy.connect.profile_check import check_profile
from pwgrid.proxy.policy.access import ANYBODY, Identity
from pwgrid.proxy.policy.profile_request import asked_profile, in_use
from pwgrid.proxy.policy.refusal import Refusal
from pwgrid.settings.model import Settings

SHOP = Profile("ada", "shop")
USE = ProfileUse("0123456789abcdef", 1_800_000_000.0, "smoke", "nightly")
OTHER = ProfileUse("fedcba9876543210", 1_800_000_001.0)
MOST = 2


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profiles")


@pytest.fixture
def browser(tmp_path: Path) -> Path:
    """The directory of a browser that has ended."""
    directory = tmp_path / "copy"
    (directory / "Default/Cache/Cache_Data").mkdir(parents=True)
    (directory / "Default/Cache/Cache_Data/index").write_bytes(b"cached")
    (directory / "Default/Cookies").write_bytes(b"who=ada")
    (directory / "SingletonLock").symlink_to("host-17")
    return directory


def content(directory: Path) -> dict[str, bytes]:
    return {str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.is_file()}


def saved(store: ProfileStore, browser: Path) -> bytes:
    """SHOP is saved once, and free."""
    store.take(SHOP, USE, os.getpid(), MOST)
    store.save(SHOP, USE.session, browser, 1)
    store.let_go(SHOP, USE.session)
    return (store.directory / "ada/shop.tar").read_bytes()


def test_what_was_saved_comes_back_without_caches_and_links(store: ProfileStore, browser: Path, tmp_path: Path) -> None:
    saved(store, browser)
    store.take(SHOP, OTHER, os.getpid(), MOST)
    store.unpack(SHOP, tmp_path / "again")
    assert content(tmp_path / "again") == {"Default/Cookies": b"who=ada"}
    (found,) = store.all()
    assert (found.profile, found.use) == (SHOP, OTHER)


def test_a_new_one_is_empty(store: ProfileStore, tmp_path: Path) -> None:
    store.take(SHOP, USE, os.getpid(), MOST)
    store.unpack(SHOP, tmp_path / "new")
    assert content(tmp_path / "new") == {}


def test_no_link_is_followed_out_of_a_browser_s_directory(store: ProfileStore, browser: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"of the host")
    (browser / "Default/key").symlink_to(secret / "key")
    (browser / "Default/all").symlink_to(secret)
    os.mkfifo(browser / "Default/pipe")
    assert b"of the host" not in saved(store, browser)


def test_one_that_is_too_large_leaves_what_was_saved(store: ProfileStore, browser: Path) -> None:
    before = saved(store, browser)
    (browser / "Default/large").write_bytes(bytes(1 << 20))
    store.take(SHOP, USE, os.getpid(), MOST)
    with pytest.raises(NotSaved, match="larger than PROFILE_MAX_MIB=1"):
        store.save(SHOP, USE.session, browser, 1)
    assert content(store.directory).keys() == {"ada/shop.tar", "ada/shop.json"}
    assert (store.directory / "ada/shop.tar").read_bytes() == before


def test_who_is_late_or_has_it_no_more_saves_nothing(store: ProfileStore, browser: Path) -> None:
    before = saved(store, browser)
    (browser / "Default/Cookies").write_bytes(b"who=eve")
    store.take(SHOP, USE, os.getpid(), MOST)
    with pytest.raises(NotSaved, match="too long"):
        store.save(SHOP, USE.session, browser, 1, lambda: True)
    with pytest.raises(NotSaved, match="another session has it"):
        store.save(SHOP, OTHER.session, browser, 1)
    store.let_go(SHOP, OTHER.session)  # not its own
    assert store.use_of(SHOP) == USE
    assert (store.directory / "ada/shop.tar").read_bytes() == before


def test_one_session_has_it_until_its_process_ends(store: ProfileStore) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        store.take(SHOP, USE, process.pid, MOST)
        with pytest.raises(ProfileInUse) as caught:
            store.take(SHOP, OTHER, os.getpid(), MOST)
        assert caught.value.use == USE
        assert [each.profile for each in store.used_by(process.pid)] == [SHOP]
        with pytest.raises(ProfileInUse):
            store.remove(SHOP)
    assert store.use_of(SHOP) is None
    draft = store.directory / "ada" / f".shop.{USE.session}.tar"
    draft.write_bytes(b"half of it")
    store.take(SHOP, OTHER, os.getpid(), MOST)
    assert not draft.exists()


def test_one_that_is_being_saved_says_so(store: ProfileStore) -> None:
    store.take(SHOP, USE, os.getpid(), MOST)
    store.ends(SHOP, OTHER.session, os.getpid())  # not its own
    assert store.use_of(SHOP) == USE
    store.ends(SHOP, USE.session, os.getpid())
    assert store.use_of(SHOP) == replace(USE, is_ending=True)
    store.let_go(SHOP, USE.session)
    store.ends(SHOP, USE.session, os.getpid())  # heard late
    assert store.use_of(SHOP) is None


WORKER = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from pwgrid.common.profile_names import Profile
from pwgrid.settings.model import Settings
from pwgrid.worker.holders import LiveSession
from pwgrid.worker.profiles import SessionProfiles

async def live(profiles_dir, directory, session_id, node):
    settings = Settings(profiles="on", profiles_dir=profiles_dir)
    profiles = SessionProfiles(SimpleNamespace(settings=settings, directory=directory, worker_id="w"))
    session = LiveSession(session_id, client_fields={"name": "smoke", "run": "nightly"})
    await profiles.take(session, Profile("ada", "shop"), int(node), float("inf"))
    profiles.ends(session_id, int(node))
    await profiles.settled()
    print("ends", flush=True)
    sys.stdin.read()

asyncio.run(live(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
"""


async def test_who_waits_for_a_session_s_end_waits_on_where_its_worker_is_killed_before_it_has_saved(
    store: ProfileStore, browser: Path, tmp_path: Path
) -> None:
    saved(store, browser)
    settings = Settings(profiles="on", profiles_dir=str(store.directory))

    async def next_client() -> None:
        await check_profile(settings, SHOP)
        store.unpack(SHOP, tmp_path / "again")

    (tmp_path / "worker/own").mkdir(parents=True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as node:
        arguments = [str(store.directory), str(tmp_path / "worker"), USE.session, str(node.pid)]
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as worker:
            assert worker.stdout is not None
            assert await asyncio.to_thread(worker.stdout.readline) == b"ends\n"
            waits = asyncio.create_task(next_client())
            await asyncio.sleep(0)
            worker.kill()
        with pytest.raises(ProfileInUse) as caught:
            store.check(SHOP, MOST)
        assert caught.value.use == replace(USE, since=caught.value.use.since, is_ending=True)
        (browser / "Default/Cookies").write_bytes(b"who=eve")
        await asyncio.to_thread(store.save, SHOP, USE.session, browser, 1)  # as its successor does
        store.let_go(SHOP, USE.session)
        await waits
    assert content(tmp_path / "again") == {"Default/Cookies": b"who=eve"}


@pytest.mark.parametrize("half", [b"", b"{", b'{"boot": 1}', b"[]"])
def test_half_a_file_locks_nothing(store: ProfileStore, half: bytes) -> None:
    store.take(SHOP, USE, os.getpid(), MOST)
    (store.directory / "ada/shop.json").write_bytes(half)
    assert store.use_of(SHOP) is None
    store.take(SHOP, OTHER, os.getpid(), MOST)
    assert store.use_of(SHOP) == OTHER


def test_a_token_has_only_so_many_and_others_have_theirs(store: ProfileStore, browser: Path) -> None:
    saved(store, browser)
    store.take(Profile("ada", "second"), USE, os.getpid(), MOST)  # it counts before it is saved
    with pytest.raises(TooManyProfiles):
        store.take(Profile("ada", "third"), OTHER, os.getpid(), MOST)
    store.take(Profile("eve", "third"), OTHER, os.getpid(), MOST)
    store.take(SHOP, OTHER, os.getpid(), MOST)


@pytest.mark.parametrize("name", ["../outside", "/outside"])
def test_a_file_that_somebody_else_has_made_writes_nowhere_else(
    store: ProfileStore, browser: Path, tmp_path: Path, name: str
) -> None:
    saved(store, browser)
    with tarfile.open(store.directory / "ada/shop.tar", "w:") as archive:
        info = tarfile.TarInfo(name)
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    with pytest.raises(tarfile.TarError):
        store.unpack(SHOP, tmp_path / "again")
    assert not (tmp_path / "outside").exists()


def test_what_operators_do(store: ProfileStore, browser: Path) -> None:
    exported = io.BytesIO()
    before = saved(store, browser)
    store.export(SHOP, exported)
    assert exported.getvalue() == before
    store.remove(SHOP)
    assert store.all() == []
    with pytest.raises(FileNotFoundError):
        store.remove(SHOP)


# What a client may ask


ADA = Identity("ada")


@pytest.mark.parametrize(
    ("setting", "identity", "profile"),
    [("auto", ADA, SHOP), ("on", ADA, SHOP), ("on", ANYBODY, Profile("", "shop"))],
)
def test_a_client_s_profile_is_its_token_s(setting: str, identity: Identity, profile: Profile) -> None:
    assert asked_profile("shop", setting, identity, is_cdp=True) == profile


@pytest.mark.parametrize(
    ("asked", "status", "sentence"),
    [
        ({"setting": "off"}, 403, "PROFILES=off"),
        ({"identity": ANYBODY}, 403, "set PROFILES=on"),
        ({"said": "../x"}, 400, "use 1 to 64 letters"),
        ({"said": "-"}, 400, "use 1 to 64 letters"),
        ({"is_cdp": False}, 400, "connect by connect_over_cdp()"),
    ],
)
def test_what_is_refused(asked: dict[str, Any], status: int, sentence: str) -> None:
    wanted: dict[str, Any] = {"said": "shop", "setting": "auto", "identity": ADA, "is_cdp": True}
    with pytest.raises(Refusal) as caught:
        asked_profile(**{**wanted, **asked})
    assert caught.value.status == status
    assert sentence in caught.value.error


def test_a_refused_client_reads_who_has_it() -> None:
    refusal = in_use(SHOP, USE)
    assert refusal.status == 409
    assert refusal.error == (
        "profile shop is in use by session 0123456789abcdef, name smoke, run nightly, since 2027-01-15 08:00:00 UTC: "
        "wait for its end, join it at /devtools/browser/0123456789abcdef, or use another profile"
    )
    assert refusal.details["session"] == USE.session


def test_where_profiles_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert profiles_directory(Settings(profiles_dir="/srv/profiles")) == Path("/srv/profiles")
    assert profiles_directory(Settings(), {"STATE_DIRECTORY": "/var/lib/pwgrid/profiles"}) == Path(
        "/var/lib/pwgrid/profiles"
    )
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert profiles_directory(Settings(), {"HOME": "/home/ada"}) == Path("/home/ada/.local/state/pwgrid/profiles")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert profiles_directory(Settings(), {}) == Path("/var/lib/pwgrid/profiles")
