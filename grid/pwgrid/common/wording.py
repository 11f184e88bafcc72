"""Parts of sentences to users: how many there are of something, and which known word an unknown one may stand for."""

from collections.abc import Iterable


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun, like `1 client` or `2 clients`. `many` is the plural where that is not `one` with an s,
    like `clients wait`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a sentence about an unknown word; empty where no known one is like it."""
    import difflib  # which most commands do without

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]}?" if close else ""
