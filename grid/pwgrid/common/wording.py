"""Parts of sentences to users: how many there are of something, what there is, and which known word an unknown one may
stand for."""

from collections.abc import Iterable, Sequence


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun, like `1 client` or `2 clients`. `many` is the plural where that is not `one` with an s,
    like `clients wait`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def listed(words: Sequence[str]) -> str:
    """All of them, like `1.58, 1.62 and 1.65`."""
    *others, last = words or ("none",)
    return f"{', '.join(others)} and {last}" if others else last


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a sentence about an unknown word; empty where no known one is like it."""
    import difflib  # which most commands do without

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]}?" if close else ""
