"""Restricts what this process may use of its host, by the kernel, and becomes a command: that, and all that it starts,
stays restricted.

    python -I -S confined_exec.py [--USE PATH ...] ... [--may-WHAT] ... [--ends-with-PID] -- COMMAND [ARGUMENT ...]

A browser's start waits for this program, so it imports little: json and typing would double the time that it takes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls; their numbers are the same on all architectures."""
_VERSION = _PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_SYM = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEV, _RESOLVE_UNIX = 1 << 13, 1 << 14, 1 << 15, 1 << 16
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV | _RESOLVE_UNIX
_BIND_TCP = 1
_SCOPE_ABSTRACT, _SCOPE_SIGNAL = 1, 2

_RIGHTS_OF_FIRST_VERSION = (1 << 13) - 1
_RIGHT_SINCE = {_REFER: 2, _TRUNCATE: 3, _IOCTL_DEV: 5, _RESOLVE_UNIX: 9}
_BIND_TCP_SINCE, _SCOPES_SINCE = 4, 6

_READ = _EXECUTE | _READ_FILE | _READ_DIR | _RESOLVE_UNIX
_FILES = _READ_FILE | _WRITE_FILE | _TRUNCATE | _MAKE_REG | _MAKE_DIR | _REMOVE_FILE | _REMOVE_DIR
RIGHTS = {
    "read": _READ,
    "write": _READ | _WRITE_FILE,
    "device": _READ_FILE | _READ_DIR | _WRITE_FILE | _IOCTL_DEV,
    "own": _FILES | _READ_DIR | _RESOLVE_UNIX | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM | _REFER,
    "files": _FILES | _READ_DIR,
    "unlisted": _FILES,
    "listen": _MAKE_SOCK | _REMOVE_FILE,
}
"""What may be done with a path and all that is below it, by the use that is made of it. `files`: plain ones and
directories. `unlisted`: the same for who knows their names. `listen`: on sockets."""

ENDS_WITH = "--ends-with-"

MAY = ("ports", "unix", "abstract")
"""What may be allowed besides: to listen on TCP ports, to open Unix sockets (beside pairs of them), and to connect to
abstract ones of processes outside."""

_SET_PARENT_DEATH_SIGNAL, _SIGKILL = 1, 9
_SET_NO_NEW_PRIVS = 38
_CAPABILITIES = struct.pack("=Ii", 0x20080522, 0)
"""The head of a question about capabilities: the third version of the answer, about this process."""
_DAC_OVERRIDE = 1 << 1

_SECCOMP_AND_SOCKET = {"x86_64": (0xC000003E, 317, 41), "aarch64": (0xC00000B7, 277, 198)}
"""By architecture: what seccomp calls it, and the numbers of two system calls."""
_SET_MODE_FILTER = 1
_SPEC_ALLOW = 1 << 2
"""Without this, kernels before 5.16 would slow the process down, against attacks by speculative execution."""


def abi() -> int:
    """The version of the kernel's Landlock; 0 where there is none."""
    try:
        return _call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:  # not in this kernel, switched off when it started, or forbidden by a container's filter
        return 0


def restrict(paths: Mapping[str, Iterable[str]], may: Collection[str] = ()) -> None:
    """Restricts the calling thread, and what it starts from now on, as far as this kernel can: nothing but `paths`, by
    their use, can be opened, made or removed (one that does not exist is passed over; /* at its end stands for what is
    there now), no process outside can be sent a signal, and what is not in `may` cannot be done.

    Raises OSError.
    """
    # Without this the kernel refuses the rest: a program with the set-user-ID bit could be led astray.
    _checked(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _drop_capabilities()
    _restrict_by_landlock(paths, may)
    if "unix" not in may:
        _forbid_unix_sockets()


def _drop_capabilities() -> None:
    """Leaves root nothing but its way with other users' files. With the rest it could, for one, read the environment of
    any process, which Landlock does not keep from CAP_PERFMON."""
    had = ctypes.create_string_buffer(24)
    _checked(_libc.capget(_CAPABILITIES, had))
    _, permitted, *_ = struct.unpack("=6I", had.raw)
    kept = permitted & _DAC_OVERRIDE
    _checked(_libc.capset(_CAPABILITIES, struct.pack("=6I", kept, kept, 0, 0, 0, 0)))


def _restrict_by_landlock(paths: Mapping[str, Iterable[str]], may: Collection[str]) -> None:
    version = abi()
    handled = _RIGHTS_OF_FIRST_VERSION | sum(right for right, since in _RIGHT_SINCE.items() if version >= since)
    net = _BIND_TCP if version >= _BIND_TCP_SINCE and "ports" not in may else 0
    scopes = _SCOPE_SIGNAL if "abstract" in may else _SCOPE_SIGNAL | _SCOPE_ABSTRACT
    scoped = scopes if version >= _SCOPES_SINCE else 0
    attributes = struct.pack("=QQQ", handled, net, scoped)
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    for use, allowed in paths.items():
        for path in _expanded(allowed):
            _allow(ruleset, path, RIGHTS[use] & handled)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _expanded(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if path.endswith("/*"):
            yield from (path[:-1] + name for name in os.listdir(path[:-1]))
        else:
            yield path


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it is not there, or this user may not look there
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        if rights:
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


def _forbid_unix_sockets() -> None:
    """Has the kernel answer EACCES to socket(AF_UNIX, ...): before its ninth version Landlock does not keep a process
    from the sockets of others, those of the grid and of a container engine for example, that its user may connect to.

    Nor may it open one by io_uring, or by system calls of another architecture. Does nothing on a rare architecture.
    """
    architecture, seccomp, socket = _SECCOMP_AND_SOCKET.get(os.uname().machine, (0, 0, 0))
    if not architecture or struct.calcsize("P") != 8:
        return
    load, equals, at_least, answer = 0x20, 0x15, 0x35, 0x06
    forbid = 10
    code = [
        (load, 0, 0, 4),  # the architecture
        (equals, 0, forbid - 2, architecture),
        (load, 0, 0, 0),  # the number of the system call
        (at_least, forbid - 4, 0, 0x40000000),  # x32
        (equals, forbid - 5, 0, 425),  # io_uring_setup
        (equals, 1, 0, socket),
        (answer, 0, 0, 0x7FFF0000),
        (load, 0, 0, 16),  # the address family
        (equals, forbid - 9, 0, 1),  # AF_UNIX
        (answer, 0, 0, 0x7FFF0000),
        (answer, 0, 0, 0x00050000 | 13),
    ]
    filters = b"".join(struct.pack("=HBBI", *each) for each in code)
    held = ctypes.create_string_buffer(filters, len(filters))
    program = struct.pack("@HP", len(code), ctypes.addressof(held))
    try:
        _call(seccomp, _SET_MODE_FILTER, _SPEC_ALLOW, program)
    except OSError:  # not in this kernel, or forbidden by a container's filter
        return


def end_with(parent: int) -> None:
    """Has the kernel kill this process, and what it becomes, when its parent ends, or the thread of that which has
    started it. Raises OSError if the parent is gone."""
    _checked(_libc.prctl(_SET_PARENT_DEATH_SIGNAL, _SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        raise ProcessLookupError(errno.ESRCH, "its parent is gone")


_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: bytes | int | None) -> int:
    """Makes a system call. Raises OSError."""
    words = (ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)
    return _checked(_libc.syscall(ctypes.c_long(number), *words))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def words(paths: Mapping[str, Iterable[str]], may: Collection[str] = ()) -> list[str]:
    """The arguments of this program before the `--`."""
    listed = [word for use, allowed in paths.items() for word in (f"--{use}", *allowed)]
    return [*(f"--may-{each}" for each in may), *listed]


def main(arguments: list[str]) -> None:
    """Becomes the command, or exits with one line on stderr that says why it cannot."""
    end = arguments.index("--")
    paths: dict[str, list[str]] = {}
    may, use, parent = set(), "", 0
    for word in arguments[:end]:
        if word.startswith("/"):
            paths[use].append(word)
        elif word.startswith("--may-"):
            may.add(word[len("--may-") :])
        elif word.startswith(ENDS_WITH):
            parent = int(word[len(ENDS_WITH) :])
        else:
            use = word[2:]
            paths.setdefault(use, [])
    command = arguments[end + 1 :]
    doing = "confining it failed (CONFINE=off starts it without)"
    try:
        restrict(paths, may)
        if parent:
            end_with(parent)
        doing = f"executing {command[0]} failed"
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{doing}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
