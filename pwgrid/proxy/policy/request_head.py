"""The head of a request, as the decisions read it: plain dictionaries, which cost a connect least."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Fields = Mapping[str, Sequence[str]]
"""Header fields: by name in lower case, all values in the order in which they came."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """`target` is path and query, as RFC 9112 calls them."""

    target: str
    fields: Fields
    method: str = "GET"


def fields_of(pairs: Iterable[tuple[str, str]]) -> Fields:
    """Returns the fields with these names and values."""
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name.lower(), []).append(value)
    return fields
