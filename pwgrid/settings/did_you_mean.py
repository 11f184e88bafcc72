"""Finds the known word that somebody may have meant by an unknown one."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a sentence about an unknown word; empty where no known one is like it."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]}?" if close else ""
