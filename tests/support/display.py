"""What a command shows, as a list of lines."""

from pwgrid.cli.progress import Display


class Recorded(Display):
    """The plain display, into a list."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)
