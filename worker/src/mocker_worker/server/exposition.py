"""Prometheus text format 0.0.4 from prepared lines, byte for byte as `prometheus_client` writes it.

Everything but the values is known beforehand: names, labels, help, and when a series began. So a
`Page` keeps templates, and a scrape costs the values alone. Series cannot come and go; a page with
more of them is made anew.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

from mocker_worker.stats import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_WITH_EXPONENT = 1_000_000

Labels: TypeAlias = Mapping[str, str]
Kind: TypeAlias = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True)
class Family:
    """Series of one name, in the order in which they are written.

    Counters are named without `_total`, which the format appends.
    """

    kind: Kind
    name: str
    help: str
    series: Sequence[tuple[Labels, Callable[[], float]]]


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """Histograms of one name."""

    name: str
    help: str
    series: Sequence[tuple[Labels, Histogram]]


Families: TypeAlias = Sequence[Family | HistogramFamily]


class Page:
    """Families that can be written as often as somebody asks."""

    def __init__(self, families: Families, *, created_s: float | None) -> None:
        """Prepare the text.

        Args:
            families: In the order in which they are written.
            created_s: Unix time of the start of all counters and histograms; None leaves out
                the `_created` series.
        """
        created = None if created_s is None else number_text(created_s)
        self._writers: list[Callable[[], str]] = []
        for family in families:
            if isinstance(family, HistogramFamily):
                self._add_histograms(family)
            else:
                self._add_values(family)
            is_counted = isinstance(family, HistogramFamily) or family.kind == "counter"
            if is_counted and created is not None and family.series:
                self._add_text(_created_text(family, created))

    def render(self) -> str:
        """Return the text with the values of this moment."""
        return "".join([write() for write in self._writers])

    def _add_text(self, text: str) -> None:
        self._writers.append(lambda: text)

    def _add_values(self, family: Family) -> None:
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        lines = [f"{name}{label_text(labels)} " for labels, _ in family.series]
        reads = [read for _, read in family.series]
        template = "".join(f"{_literal(line)}%s\n" for line in lines)
        self._add_text(_declaration(name, family.help, family.kind))
        self._writers.append(lambda: template % tuple([number_text(read()) for read in reads]))

    def _add_histograms(self, family: HistogramFamily) -> None:
        self._add_text(_declaration(family.name, family.help, "histogram"))
        for labels, histogram in family.series:
            self._writers.append(_HistogramText(family.name, labels, histogram).write)


class _HistogramText:
    """The lines of one histogram, made anew only when something was observed."""

    def __init__(self, name: str, labels: Labels, histogram: Histogram) -> None:
        bounds = (*histogram.bounds, math.inf)
        series = [f"{name}_bucket{label_text({**labels, 'le': number_text(b)})}" for b in bounds]
        series.append(f"{name}_count{label_text(labels)}")
        total = f"{_literal(f'{name}_sum{label_text(labels)}')} %s\n"
        self._template = "".join(f"{_literal(line)} %d.0\n" for line in series) + total
        self._template_of_many = "".join(f"{_literal(line)} %s\n" for line in series) + total
        self._histogram = histogram
        self._written_counts: list[int] = []
        self._text = ""

    def write(self) -> str:
        """Return the cumulative counts, the count of all, and the sum."""
        counts = self._histogram.counts
        if counts != self._written_counts:
            self._written_counts = counts.copy()
            self._text = self._fill([*accumulate(counts)])
        return self._text

    def _fill(self, counts: list[int]) -> str:
        count, total = counts[-1], number_text(self._histogram.sum)
        if count < _FIRST_WITH_EXPONENT:
            return self._template % (*counts, count, total)
        return self._template_of_many % (*map(number_text, (*counts, count)), total)


def number_text(value: float) -> str:
    """Return a value as Go prints it, in the Python client's way."""
    if isinstance(value, int) and 0 <= value < _FIRST_WITH_EXPONENT:
        return f"{value:d}.0"  # most values are counts
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return text


def label_text(labels: Labels) -> str:
    """Return labels in braces, sorted by name; nothing if there are none."""
    if not labels:
        return ""
    return "{" + ",".join(f'{k}="{_escaped(v)}"' for k, v in sorted(labels.items())) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _literal(text: str) -> str:
    """Return text that stays what it is in a template."""
    return text.replace("%", "%%")


def _declaration(name: str, help_text: str, kind: str) -> str:
    return f"# HELP {name} {_escaped_help(help_text)}\n# TYPE {name} {kind}\n"


def _created_text(family: Family | HistogramFamily, created: str) -> str:
    """Return when the series began, as gauges that follow their family."""
    name = f"{family.name}_created"
    lines = [f"{name}{label_text(labels)} {created}\n" for labels, _ in family.series]
    return _declaration(name, family.help, "gauge") + "".join(lines)
