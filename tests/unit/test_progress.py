"""Live lines on a terminal, plain lines elsewhere."""

import os
import subprocess
import sys

import pytest

from pwgrid.cli import progress
from pwgrid.cli.progress import Display, watching
from tests.support.display import Recorded


def test_elsewhere_a_line_is_printed_when_its_figures_change() -> None:
    shown = Recorded()
    with shown:
        shown.show("a", "2 left, 9 s", 2)
        shown.show("b", "1 left")
        shown.show("a", "2 left, 8 s", 2)
        shown.show("a", "1 left, 7 s", 1)
        shown.show("b", "1 left")
        shown.end("b")
        shown.show("b", "1 left")
    assert shown.lines == ["2 left, 9 s", "1 left", "1 left, 7 s", "1 left"]


@pytest.mark.parametrize("variable", ["", "FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_pipe_gets_the_plain_display_with_every_step_and_output(variable: str) -> None:
    code = (
        "from pwgrid.cli import progress, setup\n"
        "with progress.display() as shown:\n"
        "    say = setup.steps(shown)\n"
        "    say('one'); say.command(['apt-get', 'update']); say.output('Get:1 it'); say('two')\n"
    )
    environ = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    environ |= {variable: "1"} if variable else {}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "one\n  $ apt-get update\n  | Get:1 it\ntwo\n"


def test_a_terminal_gets_steps_that_stay_and_an_installer_s_output_that_does_not() -> None:
    code = (
        "from pwgrid.cli import progress, setup\n"
        "with progress.display() as shown:\n"
        "    say = setup.steps(shown)\n"
        "    say('[step] one'); say.command(['apt-get', 'update']); say.output('Get:1 [it] ' + 'x' * 200)\n"
        "    say.ended(); say('two'); say.output('gone when all is done')\n"
    )
    leader, terminal = os.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    subprocess.run([sys.executable, "-c", code], stdout=terminal, env=environ, check=True)
    os.close(terminal)
    output = b""
    try:
        while part := os.read(leader, 65536):
            output += part
    except OSError:  # all has been read
        pass
    os.close(leader)
    text = output.decode()
    assert "Get:1 [it] xxx" in text
    assert "x" * 80 not in text
    left = screen(text)
    assert [line for line in left if line] == ["[step] one", "  $ apt-get update", "two"]


def screen(output: str) -> list[str]:
    """The lines that a terminal shows in the end, as far as rich steers one."""
    lines, row = [""], 0
    for part in output.replace("\x1b", "\0\x1b").split("\0"):
        if part.startswith("\x1b["):
            stop = next(index for index in range(2, len(part)) if part[index].isalpha())
            count, order, part = part[2:stop], part[stop], part[stop + 1 :]
            if order == "A":
                row -= int(count or 1)
            elif order == "K":
                lines[row] = ""
        for character in part:
            if character == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif character != "\r":
                lines[row] += character
    return lines


def test_ctrl_c_ends_only_the_watching(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "display", Display)
    with pytest.raises(SystemExit) as ended, watching("the drain"):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().out == "the drain goes on; see pwgrid status\n"
