"""Writes the table of docs/metrics.md from the list of metrics in the code: `python -m tools.metrics_page`."""

from pathlib import Path
from typing import Final

from pwgrid.proxy.api import metrics

PAGE: Final = Path(__file__).resolve().parents[1] / "docs/metrics.md"
_BEGIN: Final = "<!-- made by python -m tools.metrics_page -->\n"
_END: Final = "<!-- end -->\n"


def page_with(page: str) -> str:
    """`page` with the table renewed."""
    head, _, rest = page.partition(_BEGIN)
    return head + _BEGIN + "\n" + _table() + "\n" + _END + rest.partition(_END)[2]


def _table() -> str:
    lines = ["| metric | kind | labels | from | what |\n|---|---|---|---|---|\n"]
    for family in metrics.ALL:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        only = " (only with `?by=worker`)" if family in metrics.ONLY_BY_WORKER else ""
        lines.append(
            f"| `{family.shown}` | {family.kind} | {labels} | {family.source.value} | {family.meaning}{only} |\n"
        )
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
