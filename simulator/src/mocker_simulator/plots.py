"""Small line and step plots as inline SVG, with no script and no file beside the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

Point = tuple[float, float]

_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 28
COLORS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0891b2", "#be123c", "#854d0e", "#475569")


@dataclass(frozen=True, slots=True)
class Line:
    """One named curve, ascending in x."""

    name: str
    points: Sequence[Point]


def plot(title: str, lines: Sequence[Line], *, unit: str = "", top: float | None = None) -> str:
    """Return a figure with a title, a legend and one SVG; x is in seconds.

    Args:
        title: Above the plot.
        lines: Curves; those without points are left out.
        unit: Of the values.
        top: Upper end of the y axis; by default what the values need.
    """
    drawn = [line for line in lines if line.points]
    right = max((line.points[-1][0] for line in drawn), default=1.0) or 1.0
    highest = max((y for line in drawn for _, y in line.points), default=1.0)
    top = top if top is not None else _round_up(highest)
    paths = "".join(
        f'<path d="{_path(line.points, right, top)}" stroke="{COLORS[i % len(COLORS)]}"/>'
        for i, line in enumerate(drawn)
    )
    legend = "".join(
        f'<span><i style="background:{COLORS[i % len(COLORS)]}"></i>{escape(line.name)}</span>'
        for i, line in enumerate(drawn)
    )
    return (
        f"<figure><figcaption>{escape(title)}<small>{escape(unit)}</small></figcaption>"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{_grid(right, top)}'
        f'<g fill="none" stroke-width="1.6">{paths}</g></svg>'
        f"<div class=legend>{legend}</div></figure>"
    )


def thin_out(points: Sequence[Point], buckets: int = 300) -> list[Point]:
    """Return the mean of the points in each of so many equal stretches of x."""
    if len(points) <= buckets:
        return list(points)
    start, end = points[0][0], points[-1][0]
    width = (end - start) / buckets or 1.0
    sums: dict[int, tuple[float, int]] = {}
    for x, y in points:
        bucket = min(int((x - start) / width), buckets - 1)
        total, count = sums.get(bucket, (0.0, 0))
        sums[bucket] = total + y, count + 1
    return [
        (start + (bucket + 0.5) * width, total / count)
        for bucket, (total, count) in sorted(sums.items())
    ]


def _path(points: Sequence[Point], right: float, top: float) -> str:
    spots = (f"{_x(x, right):.1f},{_y(min(y, top), top):.1f}" for x, y in points)
    return "M" + "L".join(spots)


def _x(x: float, right: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * x / right


def _y(y: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * y / (top or 1.0)


def _grid(right: float, top: float) -> str:
    parts: list[str] = []
    for i in range(5):
        value = top * i / 4
        y = _y(value, top)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="#888"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_label(value)}</text>'
        )
    step = _round_up(right / 6)
    for i in range(floor(right / step) + 1):
        x = _x(i * step, right)
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{_label(i * step)} s</text>'
        )
    return '<g font-size="11" stroke-width="0.5">' + "".join(parts) + "</g>"


def _label(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _round_up(value: float) -> float:
    """Return the next number of the kind 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    scale = 10 ** floor(log10(value))
    for factor in (1, 2, 2.5, 5, 10):
        if value <= factor * scale:
            return float(factor * scale)
    return float(ceil(value))
