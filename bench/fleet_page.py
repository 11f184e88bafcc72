"""Writes what bench/fleet.py has measured into docs/scaling.md, and draws its curve."""

from __future__ import annotations

import datetime
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from bench.harness import MachineMeter, table, versions
from pwgrid.registry.embedded_redis_config import find_redis_server

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PAGE: Final = DOCS / "scaling.md"
PICTURE: Final = DOCS / "images/scaling.svg"

_MEASURED: Final = re.compile(r"(<!-- measured -->\n).*(<!-- end -->)", re.DOTALL)
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 400, 64, 24, 64, 48


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure by the number of workers."""

    name: str
    color: str
    points: Sequence[tuple[int, float]]


def write_page(rows: Sequence[Sequence[str]], curves: Sequence[Curve], machine: MachineMeter) -> None:
    """Puts the table, whose head is the first of the rows, into the page, and the curves into its picture."""
    others = {name: version for name, version in versions().items() if name not in ("chromium", "redis")}
    found = ", ".join(f"{name} {version}" for name, version in {"redis-server": redis_version(), **others}.items())
    command = shlex.join(["python", "-m", "bench.fleet", *sys.argv[1:]])
    today = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d")
    # Sideways: more figures than sizes.
    lines = table(*zip(*rows, strict=True))
    busy = f"Other programs kept {machine.by_others():.1f} of {os.cpu_count()} cores busy meanwhile."
    text = "\n".join(["", f"`{command}`, {today}; {found}. {busy}", "", *lines, "", ""])
    page = PAGE.read_text()
    if not _MEASURED.search(page):
        raise ValueError(f"{PAGE} has no place for what was measured")
    PAGE.write_text(_MEASURED.sub(lambda match: f"{match[1]}{text}{match[2]}", page))
    PICTURE.write_text(as_svg(curves))


def redis_version() -> str:
    """Of the server that is measured."""
    said = subprocess.run([find_redis_server(), "--version"], capture_output=True, text=True, check=True).stdout
    number = re.search(r"v=(\S+)", said)
    return number[1] if number else said.strip()


def as_svg(curves: Sequence[Curve]) -> str:
    """A whole SVG file, both axes logarithmic."""
    points = [point for curve in curves for point in curve.points if point[1] > 0]
    most = math.ceil(math.log10(max(value for _, value in points)))
    least = min(most - 1, math.floor(math.log10(min(value for _, value in points))))
    first, last = (math.log10(of(workers for workers, _ in points)) for of in (min, max))

    def across(workers: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log10(workers) - first) / max(0.001, last - first)

    def height(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (math.log10(value) - least) / (most - least)

    def text(x: float, y: float, said: str, anchor: str = "middle", color: str = "#444") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(said)}</text>'

    def drawn(curve: Curve) -> str:
        places = [(across(workers), height(value)) for workers, value in curve.points if value > 0]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{curve.color}"/>' for x, y in places)
        return f'<polyline points="{path}" fill="none" stroke="{curve.color}" stroke-width="2"/>{dots}'

    steps = [10.0**power for power in range(least, most + 1)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
            *(
                f'<line x1="{_LEFT}" y1="{height(step):.1f}" x2="{_WIDTH - _RIGHT}" y2="{height(step):.1f}" '
                'stroke="#ddd"/>' + text(_LEFT - 8, height(step) + 4, f"{step:,g}", "end")
                for step in steps
            ),
            *map(drawn, curves),
            *(text(_LEFT, 20 + 16 * place, each.name, "start", each.color) for place, each in enumerate(curves)),
            *(
                text(across(workers), _HEIGHT - _BOTTOM + 18, f"{workers:,}")
                for workers in sorted({workers for workers, _ in points})
            ),
            text(_WIDTH / 2, _HEIGHT - 8, "registered workers"),
            "</svg>\n",
        ]
    )
