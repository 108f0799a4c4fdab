"""Families with one series per data-parallel rank, from rows of a table."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from mocker_worker.driver import EngineDriver
from mocker_worker.server.exposition import Family, HistogramFamily, Kind, Labels
from mocker_worker.stats import Histogram

Read: TypeAlias = Callable[[EngineDriver], float]


class Row(NamedTuple):
    """A number of each rank."""

    kind: Kind
    name: str
    help: str
    read: Read


class SplitRow(NamedTuple):
    """Numbers of each rank by the values of one more label."""

    kind: Kind
    name: str
    help: str
    label: str
    reads: Mapping[str, Read]


class HistogramRow(NamedTuple):
    """A histogram of each rank."""

    name: str
    help: str
    read: Callable[[EngineDriver], Histogram]


class RankFamilies:
    """Makes families for ranks with these labels."""

    def __init__(self, ranks: Sequence[tuple[Labels, EngineDriver]]) -> None:
        self._ranks = ranks

    def values(self, row: Row) -> Family:
        """Return gauges or counters, one per rank."""
        series = [(labels, _bind(row.read, rank)) for labels, rank in self._ranks]
        return Family(row.kind, row.name, row.help, series)

    def split(self, row: SplitRow) -> Family:
        """Return gauges or counters, one per rank and value of the row's label."""
        series = [
            ({**labels, row.label: value}, _bind(read, rank))
            for labels, rank in self._ranks
            for value, read in row.reads.items()
        ]
        return Family(row.kind, row.name, row.help, series)

    def histograms(self, row: HistogramRow) -> HistogramFamily:
        """Return histograms, one per rank."""
        series = [(labels, row.read(rank)) for labels, rank in self._ranks]
        return HistogramFamily(row.name, row.help, series)


def _bind(read: Read, rank: EngineDriver) -> Callable[[], float]:
    return lambda: read(rank)
