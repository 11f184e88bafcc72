"""Says how many there are of something, in sentences to users."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """Returns `1 client`, `2 clients`. `many` is the plural where it is not `one` with an s: `clients wait`."""
    return f"{count} {one if count == 1 else many or one + 's'}"
