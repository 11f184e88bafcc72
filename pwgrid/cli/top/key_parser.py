"""Turns the bytes that a terminal sends into names of keys. Reads no terminal."""

from __future__ import annotations

import codecs
import re
from typing import Final

_SEQUENCES: Final = {
    **{"[A": "up", "[B": "down", "[C": "right", "[D": "left", "[H": "home", "[F": "end", "[Z": "backtab"},
    **{"OA": "up", "OB": "down", "OC": "right", "OD": "left", "OH": "home", "OF": "end"},
    **{"[1~": "home", "[4~": "end", "[5~": "pageup", "[6~": "pagedown", "[7~": "home", "[8~": "end"},
}
_PLAIN: Final = {"\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace"}
_WHOLE: Final = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|O[@-~])")
_PART: Final = re.compile(r"\x1b(\[[0-9;?]*[ -/]*|O)?")


class Keys:
    """Puts together keys that come in pieces: a sequence over a slow line, a character of several bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""

    @property
    def is_pending(self) -> bool:
        """Whether the last key is not known yet, because it depends on the next byte."""
        return bool(self._text)

    def feed(self, data: bytes) -> list[str]:
        """The keys that are complete now: characters, or names such as "up" and "escape". Unknown ones are left out."""
        self._text += self._decoder.decode(data)
        keys = []
        while self._text:
            if whole := _WHOLE.match(self._text):
                keys += [_SEQUENCES[whole[1]]] if whole[1] in _SEQUENCES else []
                self._text = self._text[whole.end() :]
            elif _PART.fullmatch(self._text):
                break
            else:
                first, self._text = self._text[0], self._text[1:]
                name = "escape" if first == "\x1b" else _PLAIN.get(first, first)
                keys += [name] if len(name) > 1 or name.isprintable() else []
        return keys

    def nothing_follows(self) -> list[str]:
        """The pending key once no byte follows: Escape sends the first byte of a sequence. Drops any other."""
        is_escape, self._text = self._text == "\x1b", ""
        return ["escape"] if is_escape else []
