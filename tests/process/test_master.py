"""The master with real forks: starting, replacing, draining, ending. Its roles are those of support/master_main."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pwgrid.registry.embedded_redis_config import find_redis_server
from pwgrid.settings.model import NO_POOL
from pwgrid.settings.own_playwright import own_minor
from tests.support.grid import NEVER
from tests.support.master_grid import PATIENCE_S, MasterGrid, wait_gone


def pool(status: dict[str, Any], browser_type: str) -> dict[str, Any]:
    found: dict[str, Any] = next(pool for pool in status["pools"] if pool["browserType"] == browser_type)
    return found


def expect_gone(grid: MasterGrid, victim: dict[str, Any], since: int) -> None:
    """Wait until nothing of a worker is left, and its pool is complete without it."""
    for pid in (victim["pid"], *victim["tree"]):
        wait_gone(pid)
    grid.expect_state(
        lambda state: (
            state["pools"][victim["pool"]]["available"] == state["pools"][victim["pool"]]["wanted"]
            and victim["worker"] not in [worker["id"] for worker in state["workers"]]
        ),
        since,
    )
    # Its record goes last, a turn of the master's after the last of its processes.
    while victim["worker"] in [worker["id"] for worker in grid.status()["workers"]]:
        pass
    assert not Path(victim["directory"]).exists()


def test_a_grid_starts_says_so_and_ends_in_order() -> None:
    with MasterGrid(settings={"chromium_workers": 2, "firefox_workers": 1}) as grid:
        ready = grid.expect("ready")["status"]
        progress = [line["text"] for line in grid.lines if line["what"] == "progress"]
        assert progress[-1] == "launching 3 of 3 workers (3 ready)"
        assert ready["endpoint"] == f"ws://127.0.0.1:{grid.expect('listening')['port']}"
        assert ready["master"]["pid"] == grid.process.pid
        assert ready["proxy"]["pid"] == grid.expect("listening")["pid"]
        assert ready["redis"] == {"pid": None, "url": "redis://127.0.0.1:1/0", "prefix": "", "staleS": 30.0}
        assert ready["stopping"] is False
        assert pool(ready, "chromium") == {
            "name": "chromium",
            "browserType": "chromium",
            "labels": [],
            "isolation": "context",
            "playwright": own_minor(),
            "onDemand": False,
            "like": "",
            "wanted": 2,
            "available": 2,
            "starting": 0,
            "spare": 0,
            "draining": 0,
            "suspect": 0,
            "slots": 10,
            "slotsOfWorker": 5,
            "lifetimeOfWorker": int(NEVER),
            "memoryLimitMib": 0,
            "memoryHardLimitMib": 0,
            "removed": False,
            "drainTimeouts": 0,
            "reason": None,
        }
        pids = {line["worker"]: line["pid"] for line in grid.lines if line["what"] == "available"}
        assert {worker["id"]: worker["pid"] for worker in ready["workers"]} == pids
        at = grid.mark()
        grid.end()
        # The proxy refuses before the first worker leaves, and goes after the last one.
        assert grid.expect_state(lambda state: state["stopping"], at)["state"]["workers"] != []
        stop = grid.expect("proxy_command", at, name="stop")["at"]
        assert stop > max(line["at"] for line in grid.lines if line["what"] == "command")
        assert grid.lines[-1]["what"] == "ended"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_workers_still_launch_ends_everything(signum: int) -> None:
    with MasterGrid(behaviour={"chromium": "mute"}) as grid:
        grid.expect("forked")
        grid.end(signum)


def test_a_child_has_no_descriptor_that_is_not_its_own() -> None:
    secret_in, secret_out = os.pipe()
    try:
        with MasterGrid(pass_fds=(secret_in,), settings={"chromium_workers": 2}) as grid:
            grid.expect("ready")
            forked = [line for line in grid.lines if line["what"] == "forked"]
            assert len(forked) == 2
            for line in forked:
                own = {fd: what for fd, what in line["fds"].items() if int(fd) > 2}
                # The control link and both ends of the browser server's channel.
                assert [what.partition(":")[0] for what in own.values()] == ["socket"] * 3
                assert line["fds"]["0"] == "/dev/null"
                assert line["sid"] == line["pid"]
                assert line["mask"] == []
            grid.end()
    finally:
        os.close(secret_in)
        os.close(secret_out)


def test_a_killed_worker_is_replaced_and_a_successor_sees_its_browser_server_to_the_end() -> None:
    with MasterGrid(settings={"chromium_workers": 2}) as grid:
        grid.expect("ready")
        victim = grid.expect("available")
        at = grid.mark()
        os.kill(victim["pid"], signal.SIGKILL)
        taken_over = grid.expect("proxy_command", at, name="worker_taken_over")["data"]
        assert (taken_over["workerId"], taken_over["reason"]["detail"]) == (
            victim["worker"],
            "worker ended with SIGKILL",
        )
        assert grid.expect("successor", at, worker=victim["worker"])["node"] == victim["tree"][0]
        replacement = grid.expect("available", at)
        expect_gone(grid, victim, at)
        assert replacement["worker"] in [worker["id"] for worker in grid.status()["workers"]]
        grid.end()


def test_a_worker_killed_with_its_browser_server_is_lost_and_nothing_of_it_is_left() -> None:
    with MasterGrid(settings={"chromium_workers": 2}) as grid:
        grid.expect("ready")
        victim = grid.expect("available")
        at = grid.mark()
        os.kill(victim["pid"], signal.SIGSTOP)  # it may not see that its browser server dies first
        os.kill(victim["tree"][0], signal.SIGKILL)
        wait_gone(victim["tree"][0])
        os.kill(victim["pid"], signal.SIGKILL)
        lost = grid.expect("proxy_command", at, name="worker_lost")
        assert lost["data"] == {
            "workerId": victim["worker"],
            "browserType": "chromium",
            "reason": {"kind": "worker lost", "detail": "worker ended with SIGKILL"},
        }
        grid.expect("available", at)
        expect_gone(grid, victim, at)
        assert not [line for line in grid.lines if line["what"] == "successor"]
        grid.end()


def test_a_successor_that_is_killed_has_no_successor() -> None:
    with MasterGrid(behaviour={"chromium": "slow"}) as grid:
        grid.expect("ready")
        victim = grid.expect("available")
        at = grid.mark()
        os.kill(victim["pid"], signal.SIGKILL)
        os.kill(grid.expect("successor", at)["pid"], signal.SIGKILL)
        assert grid.expect("proxy_command", at, name="worker_lost")["data"]["workerId"] == victim["worker"]
        grid.expect("available", at)
        expect_gone(grid, victim, at)
        assert len([line for line in grid.lines if line["what"] == "successor"]) == 1
        grid.end_hurried()


def test_a_worker_that_misses_its_drain_deadline_is_killed_with_its_tree() -> None:
    with MasterGrid(settings={"drain_timeout": -19.5}, behaviour={"chromium": "slow"}) as grid:
        grid.expect("ready")
        victim = grid.expect("available")
        at = grid.mark()
        grid.ask("drain", {"worker": victim["worker"], "reason": "new kernel"})
        lost = grid.expect("proxy_command", at, name="worker_lost")["data"]
        assert lost["reason"]["detail"] == "new kernel: did not end in time, killed"
        expect_gone(grid, victim, at)
        assert not [line for line in grid.lines if line["what"] == "successor"]
        grid.end()


def test_a_worker_with_profiles_has_the_time_that_it_takes_to_save_them() -> None:
    settings = {"drain_timeout": -30}  # else it would be killed at once
    with MasterGrid(settings=settings, behaviour={"chromium": "slow"}, worker_says={"hasProfiles": True}) as grid:
        grid.expect("ready")
        worker, at = grid.expect("available"), grid.mark()
        grid.ask("drain", {"worker": worker["worker"], "reason": "new kernel"})
        grid.expect("available", at)
        assert worker["worker"] in [each["id"] for each in grid.status()["workers"]]
        grid.ask("drain", {"worker": worker["worker"], "now": True})
        grid.expect("proxy_command", at, name="worker_gone")
        assert not [line for line in grid.lines[at:] if line.get("name") == "worker_lost"]
        grid.end_hurried()


def test_what_a_worker_leaves_when_it_ends_by_itself_is_killed() -> None:
    with MasterGrid(behaviour={"chromium": "leaves"}) as grid:
        grid.expect("ready")
        leaver = grid.expect("available")
        assert grid.ask("drain", {"worker": leaver["worker"]})["data"] == {"draining": [leaver["worker"]]}
        for pid in leaver["tree"]:
            wait_gone(pid)
        grid.end()


def test_a_pool_that_crashes_says_why_and_the_other_serves() -> None:
    with MasterGrid(settings={"firefox_workers": 1}, behaviour={"firefox": "crash"}) as grid:
        found = grid.expect("not_ready")["status"]
        assert (found["ready"], found["reason"].partition(": ")[0]) == (False, "no firefox worker is available")
        assert pool(found, "chromium")["available"] == 1
        assert pool(found, "firefox")["reason"] == "worker ended with code 70 (3 early deaths in a row)"
        state = grid.expect_state(lambda state: state["pools"]["firefox"]["reason"])["state"]
        assert state["pools"]["firefox"]["available"] == 0
        crashed = [event for event in grid.events() if event["event"] == "child_crashed"]
        assert "this worker is broken" in str(crashed[0])
        grid.end()


def test_a_crash_loop_is_slowed_down() -> None:
    with MasterGrid(behaviour={"chromium": "crash"}) as grid:
        at = 0
        for _ in range(4):
            at = grid.expect("forked", at)["at"] + 1
        delays = [event["retry_s"] for event in grid.events() if event["event"] == "pool_backs_off"]
        assert delays[:3] == [0.0, 0.5, 1.0]
        grid.end()


def test_a_worker_that_announces_its_failure_gives_the_reason() -> None:
    with MasterGrid(behaviour={"chromium": "fail"}) as grid:
        grid.expect_state(lambda state: state["pools"]["chromium"]["reason"] == "the browser is broken")
        assert "the browser is broken" in pool(grid.status(), "chromium")["reason"]
        grid.end()


def test_a_worker_that_never_becomes_available_is_ended_and_counts_as_an_early_death() -> None:
    with MasterGrid(settings={"launch_timeout": -14.5}, behaviour={"chromium": "mute"}) as grid:
        first = grid.expect("forked")
        second = grid.expect("forked", first["at"] + 1)
        wait_gone(first["pid"])
        assert second["worker"] != first["worker"]
        lost = grid.expect("proxy_command", name="worker_lost")["data"]
        assert lost["workerId"] == first["worker"]
        assert "not available" in lost["reason"]["detail"]
        grid.end()


def test_a_silent_worker_is_replaced_and_its_browser_server_taken_over() -> None:
    with MasterGrid(settings={"worker_lost_threshold": 4.0, "chromium_workers": 2}) as grid:
        grid.expect("ready")
        silent = grid.expect("available")
        at = grid.mark()
        os.kill(silent["pid"], signal.SIGSTOP)
        taken_over = grid.expect("proxy_command", at, name="worker_taken_over")
        assert taken_over["data"]["reason"]["detail"] == "silent for 4 s"
        grid.expect("available", at)
        assert grid.expect("successor", at)["node"] == silent["tree"][0]
        expect_gone(grid, silent, at)
        grid.end()


def test_who_wakes_takes_nobody_for_silent_whom_it_could_not_hear() -> None:
    """All are frozen for longer than the threshold, and wake one after the other, as on a host that was suspended."""
    with MasterGrid(settings={"worker_lost_threshold": 3.0, "chromium_workers": 2}) as grid:
        grid.expect("ready")
        before = {worker["id"]: worker["pid"] for worker in grid.status()["workers"]}
        proxy = grid.status()["proxy"]["pid"]
        frozen = [psutil.Process(pid) for pid in (grid.process.pid, proxy, *before.values())]
        at = grid.mark()
        for process in frozen:
            process.suspend()
        time.sleep(5.0)  # it is time that has to pass
        for process in frozen:
            process.resume()
        assert {worker["id"]: worker["pid"] for worker in grid.status()["workers"]} == before
        assert grid.status()["proxy"]["pid"] == proxy
        grid.end()
        assert {line["data"]["reason"]["kind"] for line in grid.lines[at:] if line["what"] == "command"} == {"shutdown"}


@pytest.mark.parametrize("watched", [True, False])
def test_the_service_manager_hears_that_the_master_lives_if_it_wants_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, watched: bool
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "300000" if watched else "0")
        with MasterGrid() as grid:
            grid.expect("ready")
            if watched:
                assert manager.recv(100) == b"WATCHDOG=1\nWATCHDOG_USEC=300000"
                assert [manager.recv(100) for _ in range(5)] == [b"WATCHDOG=1"] * 5
            grid.end()
        if not watched:
            assert manager.recv(100).startswith(b"STOPPING=1")


def test_a_silent_proxy_is_replaced() -> None:
    with MasterGrid(settings={"worker_lost_threshold": 4.0}) as grid:
        grid.expect("ready")
        silent = grid.expect("listening")
        at = grid.mark()
        os.kill(silent["pid"], signal.SIGSTOP)
        grid.expect("listening", at)
        wait_gone(silent["pid"])
        grid.end()


def test_a_killed_proxy_is_restarted_with_its_port_and_told_everything() -> None:
    with MasterGrid() as grid:
        grid.expect("ready")
        first = grid.expect("listening")
        at = grid.mark()
        os.kill(first["pid"], signal.SIGKILL)
        wait_gone(first["pid"])
        # No moment without a listener: this one waits in the backlog.
        socket.create_connection(("127.0.0.1", first["port"]), timeout=PATIENCE_S).close()
        second = grid.expect("listening", at)
        assert (second["port"], second["pid"] != first["pid"]) == (first["port"], True)
        grid.expect_state(lambda state: state["pools"]["chromium"]["available"] == 1, at)
        grid.end()


def test_a_proxy_hears_of_a_worker_that_was_lost_while_there_was_no_proxy() -> None:
    with MasterGrid() as grid:
        grid.expect("ready")
        worker, proxy = grid.expect("available"), grid.expect("listening")
        at = grid.mark()
        os.kill(proxy["pid"], signal.SIGSTOP)
        os.kill(worker["pid"], signal.SIGKILL)
        grid.expect("available", at)
        os.kill(proxy["pid"], signal.SIGKILL)
        assert grid.expect("proxy_command", at, name="worker_taken_over")["data"]["workerId"] == worker["worker"]
        grid.end()


def test_the_embedded_redis_is_restarted_and_outlives_all_others() -> None:
    with MasterGrid(redis=str(find_redis_server())) as grid:
        first = grid.expect("ready")["status"]["redis"]["pid"]
        os.kill(first, signal.SIGKILL)
        wait_gone(first)
        while (second := grid.status()["redis"]["pid"]) in (None, first):
            pass
        at = grid.mark()
        grid.ask("scale", {"chromium": 2})
        grid.expect("available", at)
        assert not psutil.pid_exists(first)
        grid.end()
        assert not psutil.pid_exists(second)
        ends = [
            event.get("service", "worker")
            for event in grid.events()
            if event["event"] in ("worker_exited", "service_stopped")
        ]
        assert ends == ["worker", "worker", "proxy", "redis"]


def test_the_embedded_redis_ends_by_a_command_since_it_hears_a_signal_up_to_a_second_later() -> None:
    with MasterGrid(redis=str(find_redis_server())) as grid:
        grid.expect("ready")
        (output,) = grid.base.rglob("redis/output.log")
        with output.open() as said:  # the file is gone once the grid has ended
            grid.end()
            words = said.read()
    assert "User requested shutdown" in words
    assert "SIGTERM" not in words


def test_a_redis_that_cannot_start_is_named_in_the_status() -> None:
    with MasterGrid(redis="/nonexistent/redis-server") as grid:
        while not (problem := grid.status()["redis"].get("error")):
            pass
        assert problem == "redis-server ended with code 127: /nonexistent/redis-server: No such file or directory"
        assert [line for line in grid.lines if line["what"] == "forked"] == []
        grid.end()


def test_only_before_the_first_worker_has_registered_workers_have_to_wait_for_redis() -> None:
    with MasterGrid(settings={"chromium_workers": 2}) as grid:
        grid.expect("ready")
        at = grid.mark()
        forked = [line["registry_seen"] for line in grid.lines if line["what"] == "forked"]
        assert forked == [False, False]
        worker = grid.expect("available")
        os.kill(worker["pid"], signal.SIGKILL)
        successor = grid.expect("forked", at, worker=worker["worker"])
        assert successor["registry_seen"]
        grid.expect("available", at)
        replacement = next(line for line in grid.lines[at:] if line["what"] == "forked" and line != successor)
        assert replacement["registry_seen"]
        grid.end()


def test_a_grid_whose_redis_does_not_come_back_goes_on_without_it(tmp_path: Path) -> None:
    once = tmp_path / "redis-server"
    once.write_text(f'#!/bin/sh\nmv $0 $0.gone\nexec {find_redis_server()} "$@"\n')
    once.chmod(0o755)
    with MasterGrid(redis=str(once)) as grid:
        grid.expect("ready")
        os.kill(grid.status()["redis"]["pid"], signal.SIGKILL)
        while "No such file" not in (grid.status()["redis"].get("error") or ""):
            pass
        at = grid.mark()
        os.kill(grid.expect("listening")["pid"], signal.SIGKILL)
        os.kill(grid.expect("available")["pid"], signal.SIGKILL)
        grid.expect("listening", at)
        grid.expect("available", at)
        assert "No such file" in grid.status()["redis"]["error"]
        grid.end()


def test_a_drained_worker_is_replaced_at_once() -> None:
    with MasterGrid(behaviour={"chromium": "slow"}) as grid:
        grid.expect("ready")
        drained = grid.expect("available")
        at = grid.mark()
        grid.ask("drain", {"worker": drained["worker"], "reason": "new kernel"})
        command = grid.expect("command", at)
        reason = {"kind": "operator", "detail": "new kernel"}
        assert command["data"] == {"reason": reason, "timeoutS": 30.0, "within": "end"}
        grid.expect("available", at)
        (old,) = [worker for worker in grid.status()["workers"] if worker["id"] == drained["worker"]]
        assert (old["status"], old["reason"]) == ("draining", "new kernel")
        # Asked a second time, it ends now.
        grid.ask("drain", {"worker": drained["worker"]})
        assert grid.expect("command", command["at"] + 1)["data"]["within"] == "now"
        wait_gone(drained["pid"])
        grid.end_hurried()


def test_all_workers_may_be_drained() -> None:
    with MasterGrid(settings={"chromium_workers": 2}) as grid:
        grid.expect("ready")
        at = grid.mark()
        grid.ask("drain", {"all": True, "reason": "lifetime", "once": True})
        first = grid.expect("command", at)
        second = grid.expect("command", first["at"] + 1)
        assert {first["data"]["reason"]["detail"], second["data"]["reason"]["detail"]} == {"lifetime"}
        replaced = grid.expect("available", at)
        grid.expect("available", replaced["at"] + 1)
        grid.end()


def test_a_drain_that_is_asked_for_twice_with_once_cuts_no_session() -> None:
    """A client of the API that got no answer asks again."""
    with MasterGrid(behaviour={"chromium": "slow"}) as grid:
        grid.expect("ready")
        drained, asked = grid.expect("available"), {"all": True, "once": True}
        at = grid.mark()
        grid.ask("drain", asked)
        assert grid.expect("command", at)["data"]["within"] != "now"
        replacement = grid.expect("available", at)
        at = grid.mark()
        grid.ask("drain", asked)
        # Of the two workers only the one that did not drain yet is told anything.
        assert grid.expect("command", at)["worker"] == replacement["worker"]
        grid.expect("available", at)
        told = [event["worker"] for event in grid.events() if event["event"] == "worker_drain_asked"]
        assert sorted(told) == sorted([drained["worker"], replacement["worker"]])
        grid.end_hurried()


def test_pools_can_be_scaled() -> None:
    with MasterGrid() as grid:
        grid.expect("ready")
        at = grid.mark()
        wanted = grid.ask("scale", {"chromium": 3, "firefox": 1})["data"]["wanted"]
        assert wanted == {"chromium": 3, "firefox": 1, "webkit": 0}
        for name, workers in (("chromium", 3), ("firefox", 1)):
            grid.expect_state(lambda state, n=name, w=workers: state["pools"][n]["available"] == w, at)
        at = grid.mark()
        grid.ask("scale", {"chromium": 1})
        grid.expect_state(lambda state: len(state["workers"]) == 2, at)
        assert pool(grid.status(), "chromium")["available"] == 1
        grid.end()


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("drain", {"worker": "ffffffff"}, "no worker matches ffffffff"),
        ("drain", {}, "no worker matches an empty drain request"),
        ("scale", {"opera": 1}, "there is no pool 'opera'; pools are chromium, firefox, webkit"),
        ("scale", {"chromium": 0}, NO_POOL),
        ("scale", {"chromium": 0, "firefox": 0}, NO_POOL),
        ("scale", {"chromium": -1}, "chromium: -1 is not a number of workers from 0 to 1000"),
        ("scale", {"chromium": "2"}, "chromium: '2' is not a number of workers from 0 to 1000"),
        ("dance", {}, "the master knows no request 'dance'"),
    ],
)
def test_a_wrong_request_is_answered_with_a_sentence(name: str, data: dict[str, Any], sentence: str) -> None:
    with MasterGrid(settings={"chromium_workers": 0}) as grid:
        grid.expect("not_ready")
        assert grid.ask(name, data) == {"t": "error", "error": sentence}
        grid.end()


def test_garbage_on_the_control_socket_ends_that_connection_only() -> None:
    with MasterGrid() as grid:
        grid.expect("ready")
        worker = grid.expect("available")
        init = b'{"t":"init","name":"%s","lastCommandIdx":0,"lastEventIdx":0}'
        packets = [
            b"\x00",
            b"{}",
            b"[" * 9000,
            b'{"t":"event","idx":1,"name":"available","data":{}}',
            b'{"t":"request","name":[],"data":{}}',
            init % b"proxy",  # we are neither of them, whatever we say
            init % worker["worker"].encode(),
        ]
        for packet in packets:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
                control.settimeout(PATIENCE_S)
                control.connect(grid.start["control"])
                control.send(packet)
                answer = control.recv(4096)
                if packet.startswith(b'{"t":"init"'):
                    assert answer == b'{"t":"close","reason":"this master has no such child"}'
                else:
                    assert answer == b""
        assert pool(grid.status(), "chromium")["available"] == 1
        grid.end()


def test_many_silent_visitors_do_not_keep_an_operator_out() -> None:
    visitors = []
    with MasterGrid() as grid:
        grid.expect("ready")
        for _ in range(200):
            visitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            visitor.connect(grid.start["control"])
            visitors.append(visitor)
        assert grid.status()["stopping"] is False
        for visitor in visitors:
            visitor.close()
        grid.end()


def test_a_second_signal_ends_what_does_not_end_by_itself() -> None:
    with MasterGrid(behaviour={"chromium": "slow"}) as grid:
        grid.expect("ready")
        at = grid.mark()
        grid.end_hurried()
        assert [line["data"]["within"] == "now" for line in grid.lines[at:] if line["what"] == "command"] == [
            False,
            True,
        ]


def test_a_ctrl_c_that_comes_when_all_has_ended_leaves_nothing() -> None:
    with MasterGrid(signal_at_end=True) as grid:
        grid.expect("ready")
        grid.end(signal.SIGINT)


def test_the_end_of_the_lifeline_ends_the_grid() -> None:
    life_in, life_out = os.pipe()
    with MasterGrid(pass_fds=(life_in,), lifeline_fd=life_in) as grid:
        os.close(life_in)
        grid.expect("ready")
        os.close(life_out)
        grid.end(None)


def test_the_end_of_the_terminal_ends_the_grid() -> None:
    terminal, slave = os.openpty()
    with MasterGrid(terminal=slave) as grid:
        os.close(slave)
        grid.expect("ready")
        os.close(terminal)
        grid.end(None)


@pytest.mark.parametrize("what", ["terminal", "lifeline"])
def test_the_end_of_the_terminal_or_the_lifeline_hurries_no_stop(what: str) -> None:
    (life_in, life_out), (terminal, slave) = os.pipe(), os.openpty()
    started: dict[str, Any] = {"pass_fds": (life_in,), "lifeline_fd": life_in}
    if what == "terminal":
        started = {"terminal": slave}
    settings = {"drain_timeout": 1000.0}
    with MasterGrid(**started, settings=settings, behaviour={"chromium": "slow"}, second_signal_after_s=0) as grid:
        os.close(life_in)
        os.close(slave)
        grid.expect("ready")
        grid.send(signal.SIGINT)
        grid.expect("command")
        os.close(life_out)
        os.close(terminal)
        grid.status()  # in this turn of its loop the master hears of that, too
        (worker,) = grid.status()["workers"]
        assert worker["drainLeftS"] > 0
        grid.end(signal.SIGINT)


def test_a_hangup_without_a_terminal_ends_nothing() -> None:
    with MasterGrid() as grid:
        grid.expect("ready")
        at = grid.mark()
        grid.send(signal.SIGHUP)
        grid.ask("scale", {"chromium": 2})
        grid.expect("available", at)
        grid.end()


def test_a_fork_that_fails_is_tried_again() -> None:
    with MasterGrid(fork_errors=4) as grid:
        grid.expect("ready")
        failed = [event for event in grid.events() if event["event"].endswith("_not_started")]
        assert len(failed) == 4
        assert "Resource temporarily unavailable" in failed[-1]["reason"]
        grid.end()


def test_a_second_master_on_the_same_port_is_told_the_pid_of_the_first() -> None:
    with MasterGrid() as grid:
        grid.expect("ready")
        port = grid.expect("listening")["port"]
        script = (
            "import sys; from pwgrid.master.listener import open_listener\n"
            "open_listener('127.0.0.1', int(sys.argv[1]), runtime_dir=sys.argv[2])"
        )
        refused = subprocess.run(
            [sys.executable, "-c", script, str(port), str(grid.base)],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert f"master pid {grid.process.pid}" in refused.stderr
        grid.end()


def test_a_bug_in_the_master_leaves_nothing_behind() -> None:
    with MasterGrid(explode_on="webkit", settings={"chromium_workers": 2}) as grid:
        grid.expect("ready")
        grid.ask("scale", {"webkit": 1})
        grid.read_to_end()
        assert grid.process.wait(PATIENCE_S) != 0
        assert "a bug" in grid.log_text()
        for line in grid.lines:
            for pid in [line.get("pid"), *line.get("tree", [])]:
                if pid is not None:
                    wait_gone(pid)
        assert not grid.base.exists()


def test_a_bug_in_a_request_is_answered_and_logged_and_the_grid_goes_on() -> None:
    def told(grid: MasterGrid) -> list[dict[str, Any]]:
        return [event for event in grid.events() if event["event"] == "request_failed"]

    with MasterGrid(broken_request="reload") as grid:
        grid.expect("ready")
        answer = grid.ask("reload")
        assert answer == {
            "t": "error",
            "error": "a bug in the master: RuntimeError('a bug'); its log has more (request_failed)",
        }
        grid.send(signal.SIGHUP)
        while len(told(grid)) < 2:
            grid.status()
        assert [event.get("name", event.get("signal")) for event in told(grid)] == ["reload", "SIGHUP"]
        assert all("in broken" in event["traceback"] for event in told(grid))
        assert grid.status()["ready"]
        grid.end()


def test_what_a_worker_says_of_its_clients_that_makes_no_sense_is_not_shown() -> None:
    said = [None, {"name": "a"}, {"name": "a", "slots": "1"}, {"name": "b", "slots": 2, "colour": "blue"}]
    with MasterGrid(worker_says={"runs": said}) as grid:
        grid.expect("ready")
        while not (runs := grid.status()["runs"]):
            pass
        assert runs == [{"name": "b", "run": "", "labels": "", "slots": 2}]
        grid.end()


def test_what_a_proxy_says_of_waiting_clients_that_makes_no_sense_is_not_shown() -> None:
    said = [{"pool": 1, "waiting": 2}, {"pool": "chromium", "waiting": 2}]
    with MasterGrid(proxy_says={"waitingByRun": said}) as grid:
        grid.expect("ready")
        waiting = grid.status()
        assert waiting["waiting"] == 0
        assert waiting["waitingByRun"] == [{"pool": "chromium", "run": "", "token": "", "waiting": 2}]
        grid.end()


@pytest.mark.parametrize(
    ("signum", "reason"),
    [
        (signal.SIGTERM, "the grid is stopping"),
        (signal.SIGUSR1, "the master was told to leave (SIGUSR1) before the new"),
    ],
)
def test_who_waits_for_an_upgrade_hears_what_came_in_between(signum: int, reason: str) -> None:
    with MasterGrid(argv=["/bin/sh", "-c", "exec sleep 1000"], settings={"detach_grace": 0.1}) as grid:
        grid.expect("ready")
        with grid.asking("upgrade", {"force": True}) as operator:
            while not any(event["event"] == "upgrade_checking" for event in grid.events()):
                grid.status()
            grid.send(signum)
            assert json.loads(operator.recv(1 << 20))["error"].startswith(reason)
        grid.read_to_end()  # the children end, too
        assert grid.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("leaves", [True, False])
def test_who_waits_for_a_reload_hears_that_the_proxy_has_not_confirmed_it_where_the_master_cannot_wait(
    leaves: bool, tmp_path: Path
) -> None:
    loads_once = tmp_path / "loads_once"  # it is gone when the master is to become it
    loads_once.write_text('#!/bin/sh\nrm "$0"\n')
    loads_once.chmod(0o755)
    settings = {"detach_grace": 0.1, "max_surge": 1}
    with MasterGrid(argv=[str(loads_once)], settings=settings, reloaded={"max_surge": 2}) as grid:
        grid.expect("ready")
        with grid.asking("reload") as operator:
            while not any(event["event"] == "reloaded" for event in grid.events()):
                grid.status()
            grid.send(signal.SIGUSR1 if leaves else signal.SIGUSR2)
            answer = json.loads(operator.recv(1 << 20))
            assert (answer["data"]["changed"], answer["data"]["proxyKnows"]) == (["max_surge"], False)
        if not leaves:
            grid.send(signal.SIGTERM)
        grid.read_to_end()  # the children end, too
        assert grid.process.wait(PATIENCE_S) == 0


def test_a_master_without_a_free_descriptor_goes_on_and_does_later_what_it_could_not() -> None:
    with MasterGrid(settings={"memory_check_interval": 0.05, "chromium_workers": 2}) as grid:

        def expect_logged(event: str) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not any(each["event"] == event for each in grid.events()):
                assert grid.process.poll() is None, grid.log_text()
                assert time.monotonic() < deadline, grid.log_text()

        def expect_answer(operator: socket.socket) -> None:
            operator.send(json.dumps({"t": "request", "name": "status", "data": {}}).encode())
            assert json.loads(operator.recv(1 << 20))["t"] == "reply"

        def open_now() -> set[int]:
            return {int(fd) for fd in os.listdir(f"/proc/{master.pid}/fd")}

        grid.expect("ready")
        master, victim = psutil.Process(grid.process.pid), grid.expect("available")
        with grid.asking("status") as operator:  # connected before, so that the master can answer it
            operator.recv(1 << 20)
            at = grid.mark()
            taken = open_now()
            for _ in range(5):  # what it opens for a moment only, such as a file of /proc, is not in all of them
                expect_answer(operator)
                taken &= open_now()
            most, hard = master.rlimit(psutil.RLIMIT_NOFILE)
            # The next one that it opened would have the first number that is free.
            master.rlimit(psutil.RLIMIT_NOFILE, (min(set(range(len(taken) + 1)) - taken), hard))
            expect_logged("memory_not_measured")
            grid.send(signal.SIGCHLD)
            expect_logged("reaping_put_off")
            os.kill(victim["pid"], signal.SIGKILL)
            expect_logged("worker_exited")
            expect_answer(operator)
            master.rlimit(psutil.RLIMIT_NOFILE, (most, hard))
        grid.expect("available", at)
        expect_gone(grid, victim, at)
        grid.end()


def test_a_master_that_cannot_write_that_it_leaves_leaves_all_the_same() -> None:
    with MasterGrid(settings={"detach_grace": 0.1}) as grid:
        grid.expect("ready")
        psutil.Process(grid.process.pid).rlimit(psutil.RLIMIT_FSIZE, (0, 0))
        grid.send(signal.SIGUSR1)
        grid.read_to_end()  # the children end, too
        assert grid.process.wait(PATIENCE_S) == 0
        assert [line["data"]["reason"]["kind"] for line in grid.lines if line["what"] == "command"] == ["no master"]
