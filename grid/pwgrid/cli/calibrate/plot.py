"""Draws sessions per second against clients at once, as text and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from pwgrid.cli.calibrate.sizing import Measured, Step, bend
from pwgrid.common.wording import counted

BAR: Final = 28
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 360, 64, 64, 40, 48


def report(found: Measured) -> list[str]:
    """The plot, and where it bends."""
    best, last = bend(found.steps), found.steps[-1]
    at = counted(best.clients, "client")
    lines = [*as_text(found.steps), f"it bends at {at}: {best.per_s:.2f} sessions per second"]
    return (
        [*lines, "it was still rising: --most tries more clients"] if best is last and len(found.steps) > 1 else lines
    )


def as_text(steps: Sequence[Step]) -> list[str]:
    """Lines for a terminal of 80 columns."""
    best, bends_at = max(step.per_s for step in steps) or 1.0, bend(steps).clients
    lines = [f"{'clients':>7}  {'sessions/s':>10}  {'':{BAR}}  {'p50 s':>6} {'p95 s':>6} {'cores':>5}"]
    for step in steps:
        bar = "#" * round(BAR * step.per_s / best)
        failed = f"  {step.failed} failed" if step.failed else ""
        mark = "  < bends here" if step.clients == bends_at else ""
        figures = f"{step.p50_s:6.2f} {step.p95_s:6.2f} {step.busy_cores:5.1f}"
        lines.append(f"{step.clients:7}  {step.per_s:10.2f}  {bar:{BAR}}  {figures}{mark}{failed}")
    return lines


def as_svg(steps: Sequence[Step], title: str) -> str:
    """A whole SVG file: throughput and the time of a session, and where the throughput bends."""
    best, slowest = max(step.per_s for step in steps) or 1.0, max(step.p95_s for step in steps) or 1.0
    bends_at = bend(steps)
    places = [_LEFT + (_WIDTH - _LEFT - _RIGHT) * place / max(1, len(steps) - 1) for place in range(len(steps))]

    def height(share: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    def line(values: Sequence[float], most: float, color: str) -> str:
        points = [(x, height(value / most)) for x, value in zip(places, values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in points)
        return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>{dots}'

    def text(x: float, y: float, said: str, anchor: str = "middle", color: str = "#444") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(said)}</text>'

    bend_x = places[list(steps).index(bends_at)]
    axis = height(0)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
            text(_WIDTH / 2, 20, title, color="#111"),
            f'<line x1="{_LEFT}" y1="{axis}" x2="{_WIDTH - _RIGHT}" y2="{axis}" stroke="#999"/>',
            f'<line x1="{bend_x:.1f}" y1="{_TOP}" x2="{bend_x:.1f}" y2="{axis}" stroke="#999" stroke-dasharray="4 4"/>',
            text(bend_x, _TOP - 6, f"bends at {bends_at.clients}"),
            line([step.per_s for step in steps], best, "#1a7f37"),
            line([step.p95_s for step in steps], slowest, "#bf5700"),
            *(text(x, axis + 18, str(step.clients)) for x, step in zip(places, steps, strict=True)),
            text(_WIDTH / 2, _HEIGHT - 8, "clients at once"),
            text(_LEFT - 8, height(1) + 4, f"{best:.2f}/s", "end", "#1a7f37"),
            text(_LEFT - 8, axis, "0", "end"),
            text(_WIDTH - _RIGHT + 8, height(1) + 4, f"{slowest:.2f} s", "start", "#bf5700"),
            text(_LEFT, _HEIGHT - 8, "sessions per second", "start", "#1a7f37"),
            text(_WIDTH - _RIGHT, _HEIGHT - 8, "95 of 100 take no longer", "end", "#bf5700"),
            "</svg>\n",
        ]
    )
