"""One day as a picture: what was asked for, and what each way of scaling held ready for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 420, 60, 40, 40
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
"""Okabe and Ito's palette, which colour-blind readers tell apart."""


def svg(title: str, demand: Sequence[float], held: Mapping[str, Sequence[float]]) -> str:
    """`demand` filled in grey, each of `held` as a line; all are one value a minute in the same unit."""
    top = 1.05 * max(max(values) for values in (demand, *held.values()))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    for step in range(5):
        value = top * step / 4
        y = _y(value, top)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{value:.0f}</text>')
    for hour in range(0, 25, 3):
        x = LEFT + (WIDTH - LEFT) * hour / 24
        lines.append(f'<text x="{x:.0f}" y="{HEIGHT - 20}" text-anchor="middle">{hour:02}:00</text>')
    zero = _y(0, top)
    lines.append(f'<polygon fill="#bbb" points="{LEFT},{zero:.0f} {_points(demand, top)} {WIDTH},{zero:.0f}"/>')
    for number, (name, values) in enumerate(held.items()):
        colour = COLOURS[number % len(COLOURS)]
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{_points(values, top)}"/>')
        x, y = LEFT + 12, TOP + 14 + 17 * number
        lines.append(f'<line x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>')
        lines.append(f'<text x="{x + 28}" y="{y}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _points(values: Sequence[float], top: float) -> str:
    step = (WIDTH - LEFT) / (len(values) - 1)
    # Every fifth minute is as much as the picture can show.
    return " ".join(f"{LEFT + index * step:.0f},{_y(values[index], top):.0f}" for index in range(0, len(values), 5))


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top
