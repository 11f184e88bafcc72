"""The order of a shutdown, walked literally, and what further signals mean."""

from __future__ import annotations

import pytest

from pwgrid.master.shutdown_order import SECOND_SIGNAL_AFTER_S, Shutdown, Step


def test_what_others_use_ends_after_them() -> None:
    shutdown = Shutdown()
    assert shutdown.ask(10.0)
    steps = (Step.WORKERS_GONE, Step.PROXY_GONE, Step.FORWARDER_GONE, Step.TLS_GONE, Step.REDIS_GONE)
    walk = [shutdown.phase] + [shutdown.step(step) for step in steps]
    assert [phase.value for phase in walk] == ["workers", "proxy", "forwarder", "tls", "redis", "done"]


@pytest.mark.parametrize("step", [Step.PROXY_GONE, Step.FORWARDER_GONE, Step.TLS_GONE, Step.REDIS_GONE])
def test_nothing_is_skipped(step: Step) -> None:
    shutdown = Shutdown()
    shutdown.ask(10.0)
    with pytest.raises(KeyError):
        shutdown.step(step)


def test_one_ctrl_c_that_is_delivered_twice_is_one() -> None:
    shutdown = Shutdown()
    shutdown.ask(10.0)
    assert not shutdown.ask(10.0)
    assert not shutdown.ask(10.0 + SECOND_SIGNAL_AFTER_S - 0.01)
    assert not shutdown.is_hurried


def test_a_second_signal_means_now_and_a_third_one_nothing_more() -> None:
    shutdown = Shutdown()
    shutdown.ask(10.0)
    assert shutdown.ask(10.0 + SECOND_SIGNAL_AFTER_S)
    assert shutdown.is_hurried
    assert not shutdown.ask(20.0)
