"""Installers that are small scripts: what is said of them, how they are ended, and what is left to a user."""

import contextlib
import os
import select
from dataclasses import replace
from pathlib import Path

import pytest

from pwgrid.setup import packages
from pwgrid.setup.packages import Host, Steps
from tests.support.bare_host import BareHost

NAMES = ("thing", "other-thing")


@pytest.fixture
def world(tmp_path: Path) -> BareHost:
    return BareHost(tmp_path)


def install(world: BareHost, host: Host | None = None) -> str | None:
    return (host or world.host).install("a thing", NAMES)


def test_the_first_name_that_the_system_has_is_installed(world: BareHost) -> None:
    world.command("apt-cache", 'case "$*" in *other-thing) exit 0;; esac; exit 1')
    world.command("apt-get", "exit 0")
    assert install(world) is None
    assert [call.split()[-1] for call in world.calls() if call.startswith("apt-get")] == ["update", "other-thing"]
    assert "a thing: installing the system's package other-thing" in world.said


def test_the_package_lists_are_fetched_once_and_before_the_first_package(world: BareHost) -> None:
    world.command("apt-cache", "exit 0")
    world.command("apt-get", 'case "$*" in *update) touch $WORLD/new; exit 0;; esac\n[ -e $WORLD/new ] || exit 100')
    assert install(world) is None
    assert install(world) is None
    assert [call.split()[-1] for call in world.calls() if call.startswith("apt-get")] == ["update", "thing", "thing"]


def test_without_the_network_a_package_that_lies_here_is_installed_all_the_same(world: BareHost) -> None:
    world.command("apt-cache", "exit 0")
    world.command("apt-get", 'case "$*" in *update) exit 100;; esac')
    assert install(world) is None


def test_a_package_that_apt_has_not_is_named(world: BareHost) -> None:
    world.command("apt-get", "exit 0")
    assert install(world) == "apt has no package thing or other-thing"


def test_a_system_without_apt_is_told_so(world: BareHost) -> None:
    (world.bin / "apt-get").unlink()
    assert install(world) == "there is no apt-get here that could install thing"


def test_without_root_nothing_is_run_and_the_command_is_left_to_the_user(world: BareHost) -> None:
    host = replace(world.host, is_root=False)
    assert install(world, host) == "the system's package thing is not installed, and installing it takes root"
    assert host.left_to_do() == "apt-get update && apt-get install thing"
    world.command("sudo", "exit 1")
    host.commands_by_hand.append("and-more")
    assert host.left_to_do() == "sudo apt-get update && sudo apt-get install thing && sudo and-more"
    assert not any(call.startswith("apt-get") for call in world.calls())


def test_who_is_root_has_nothing_left_to_do(world: BareHost) -> None:
    assert install(world) is not None  # its apt-get fails
    assert world.host.left_to_do() is None


def test_sudo_without_a_password_is_used(world: BareHost) -> None:
    world.command("sudo", 'shift; exec "$@"')
    world.command("apt-cache", "exit 0")
    world.command("apt-get", 'echo "frontend $DEBIAN_FRONTEND"')
    assert install(world, replace(world.host, is_root=False)) is None
    assert any(call.startswith("sudo -n env DEBIAN_FRONTEND=noninteractive apt-get") for call in world.calls())
    assert "  | frontend noninteractive" in world.said


def test_of_many_lines_the_first_of_each_kind_is_said(world: BareHost) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo Get:$i it; done; echo Unpacking it; printf '10%%\\r20%% of it\\n'"
    world.command("apt-get", script)
    assert world.host.run(["apt-get"]) is None
    first = [line for line in world.said if line.startswith("  | ")]
    assert first[0] == "  | Get:1 it"
    assert "  | Unpacking it" in first
    assert len(first) < 9


def test_a_failure_is_told_by_the_lines_that_speak_of_an_error_without_colours_and_stack_frames(
    world: BareHost,
) -> None:
    lines = r"\033[2mDownloading\033[22m it\nError: no route\n    at Socket.on (net.js:1)\nError: no route\n}\n"
    script = f"printf '{lines}'"
    world.command("apt-get", f"{script}\nexit 3")
    assert world.host.run(["apt-get"]) == "exit 3: Error: no route"
    assert "  | Downloading it" in world.said
    assert not any("net.js" in line for line in world.said)


def test_a_command_that_is_not_there_is_a_reason_and_no_traceback(world: BareHost) -> None:
    assert "No such file" in (world.host.run(["/nonexistent/installer"]) or "")


def test_a_failure_without_a_word_is_told_as_such(world: BareHost) -> None:
    world.command("apt-get", "exit 7")
    assert world.host.run([str(world.bin / "apt-get")]) == "exit 7: it printed nothing"


def gone(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            return bool(select.select([pidfd], [], [], 10)[0])
        finally:
            os.close(pidfd)
    return True


def test_an_installer_that_hangs_is_asked_to_end_and_what_it_started_is_killed(world: BareHost) -> None:
    world.command("apt-cache", "exit 0")
    script = "trap 'touch $WORLD/asked; exit 1' INT; sleep 1000 & echo $! > $WORLD/sleeper; wait"
    world.command("apt-get", f'case "$*" in *install*) {script};; esac')
    fault = install(world, replace(world.host, timeout_s=3))
    assert fault == "apt-get failed (not done within 3 s)"
    assert (world.directory / "asked").exists()
    assert gone(int((world.directory / "sleeper").read_text()))


def test_an_installer_that_does_not_listen_is_killed_with_all_that_it_started(
    world: BareHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_INT_S", 0.1)
    monkeypatch.setattr(packages, "_TERM_S", 0.1)
    world.command("apt-get", "trap '' INT TERM; echo $$ > $WORLD/deaf; sleep 1000; sleep 1000")
    assert replace(world.host, timeout_s=3).run([str(world.bin / "apt-get")]) is not None
    assert gone(int((world.directory / "deaf").read_text()))


def test_an_interrupted_user_s_installer_finishes_its_step(world: BareHost) -> None:
    """As a Ctrl-C in the middle of apt: it ends by itself, and the interrupt goes on its way."""
    world.command("apt-get", "trap 'touch $WORLD/finished; exit 1' INT; echo at work; sleep 1000 & wait")

    def interrupt(line: str) -> None:
        world.said.append(line)
        if "at work" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace(world.host, say=Steps(interrupt)).run([str(world.bin / "apt-get")])
    assert (world.directory / "finished").exists()
    assert world.said[-1] == "  (ending it)"
