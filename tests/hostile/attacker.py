"""Run as another user by tests/hostile/test_neighbours.py: what a neighbour on the host puts in the grid's way.

Arguments: the base directory to make, and the port of the grid that it pretends to be. Prints its pid, reads
{"createTime", "lock", "says"} as a JSON line, and prints `ready`; after that a line for each visitor of its control
socket. Needs nothing but Python.
"""

import json
import os
import socket
import sys
from pathlib import Path


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    base, port = Path(sys.argv[1]), sys.argv[2]
    say(str(os.getpid()))
    told = json.loads(sys.stdin.readline())
    directory = base / port
    directory.mkdir(parents=True, mode=0o755)
    base.chmod(0o755)
    lock = directory / "lock"
    if told["lock"] == "fifo":
        os.mkfifo(lock)
    else:
        content = {"pid": os.getpid(), "createTime": told["createTime"], "endpoint": told["says"]}
        lock.write_text(json.dumps(content))
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.bind(str(directory / "control.sock"))
    (directory / "control.sock").chmod(0o777)
    control.listen()
    say("ready")
    while True:
        visitor, _ = control.accept()
        with visitor:
            asked = visitor.recv(1 << 20)
            say("asked" if asked else "looked at")
            if asked:
                visitor.send(json.dumps({"t": "error", "error": told["says"]}).encode())


if __name__ == "__main__":
    main()
