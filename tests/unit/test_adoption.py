"""Which of the proxies that the master before has left is the one for new clients. For children that are dead, or use
another Redis, see tests/process/test_adoption.py; for what an adopted worker says, test_worker_state_machine.py."""

from pwgrid.common.types import ChildKind
from pwgrid.master.leftovers import Leftovers
from pwgrid.runtime.child_files import COMING, RETIRING, ChildState


def found(kind: ChildKind, *, start: float = 1.0, status: str = "") -> ChildState:
    return ChildState(kind, "", 0, 0.0, "", "", "", start, 0.0, status=status)


def test_what_can_be_used_is_adopted() -> None:
    worker, proxy, redis = found("worker"), found("proxy"), found("redis")
    assert Leftovers.of([worker, proxy, redis], dead=[]) == Leftovers([worker], proxy, [], redis)


def test_of_several_proxies_the_newest_is_adopted_and_the_others_retire() -> None:
    first, third, second = found("proxy", start=1), found("proxy", start=3), found("proxy", start=2)
    assert Leftovers.of([first, third, second], dead=[]) == Leftovers([], third, [first, second])


def test_a_proxy_that_retires_is_never_the_one_for_new_clients() -> None:
    first, retires = found("proxy", start=1), found("proxy", start=2, status=RETIRING)
    assert Leftovers.of([first, retires], dead=[]) == Leftovers([], first, [retires])
    assert Leftovers.of([retires], dead=[]) == Leftovers([], None, [retires])


def test_a_proxy_that_does_not_listen_yet_is_the_one_for_new_clients_only_where_there_is_no_other() -> None:
    first, comes = found("proxy", start=1), found("proxy", start=2, status=COMING)
    retires = found("proxy", start=3, status=RETIRING)
    assert Leftovers.of([first, comes], dead=[]) == Leftovers([], first, [comes])
    assert Leftovers.of([comes, retires], dead=[]) == Leftovers([], comes, [retires])


def test_the_forwarder_is_adopted_and_its_socket_stays() -> None:
    leftovers = Leftovers.of([found("forwarder")], dead=[])
    assert leftovers.forwarder == found("forwarder")
    assert {"forwarder", "forwarder.sock"} < {*leftovers.paths()}
    assert Leftovers.of([found("proxy")], dead=[]).paths()[0] == "proxy"
