"""One HTML page about a simulation: figures, and plots over virtual time; no other file needed."""

from collections.abc import Callable, Sequence
from html import escape
from math import isnan

from mocker_simulator.fleet import Outcome
from mocker_simulator.plots import Line, Point, plot, thin_out
from mocker_simulator.records import RequestRecord
from mocker_simulator.summary import Latency, Summary, percentile
from mocker_simulator.virtual_worker import Samples

_BUCKETS = 120
_MOST_LINES = 8

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:1340px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}p.sub{margin:.2rem 0 1.2rem;opacity:.7}
.cards{display:flex;flex-wrap:wrap;gap:.8rem;margin-bottom:1.2rem}
.card{border:1px solid #8884;border-radius:10px;padding:.6rem 1rem;min-width:8rem}
.card b{display:block;font-size:1.3rem}.card span{opacity:.7;font-size:.85rem}
table{border-collapse:collapse;margin-bottom:1.5rem}td,th{padding:.25rem .9rem;text-align:right}
th:first-child,td:first-child{text-align:left}tr+tr{border-top:1px solid #8883}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(420px,1fr));gap:1.2rem}
figure{margin:0;border:1px solid #8884;border-radius:10px;padding:.7rem}
figcaption{font-weight:600}figcaption small{font-weight:400;opacity:.6;margin-left:.5rem}
svg{width:100%;height:auto}svg text{fill:currentColor;opacity:.65}
.legend span{margin-right:1rem;font-size:.85rem}
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.35em}
"""


def page(outcome: Outcome, summary: Summary, *, title: str) -> str:
    """Return the page's HTML."""
    plots = [
        _latency_plot("Time to first token", outcome, lambda record: record.ttft_ms),
        _latency_plot("Time per output token", outcome, lambda record: record.tpot_ms),
        _fleet_plot(outcome.samples),
        _worker_plot("Running requests", outcome.samples, 1),
        _worker_plot("Waiting requests", outcome.samples, 2),
        _worker_plot("KV cache in use", outcome.samples, 3, top=1.0),
        _hit_plot(outcome),
        _throughput_plot(outcome),
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{escape(title)} - mocker-simulator</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1><p class=sub>{len(outcome.samples)} workers, virtual time</p>"
        f"{_cards(summary)}{_table(summary)}<div class=plots>{''.join(plots)}</div></html>\n"
    )


def _cards(summary: Summary) -> str:
    seconds = summary.duration_ms / 1000 or 1.0
    cards = {
        "requests": f"{summary.num_requests:,}",
        "virtual time": f"{seconds:,.1f} s",
        "requests a second": f"{summary.num_requests / seconds:,.2f}",
        "output tokens a second": f"{summary.total_output_tokens / seconds:,.0f}",
        "prompt tokens from cache": f"{summary.prefix_cache_reused_ratio:.1%}",
        "preemptions": f"{summary.preemptions:,}",
        "refused": f"{summary.num_refused:,}",
    }
    inner = "".join(f"<div class=card><b>{v}</b><span>{k}</span></div>" for k, v in cards.items())
    return f"<div class=cards>{inner}</div>"


def _table(summary: Summary) -> str:
    def row(name: str, latency: Latency) -> str:
        values = (latency.mean, latency.p50, latency.p90, latency.p99)
        return f"<tr><td>{name}</td>" + "".join(f"<td>{v:,.2f}</td>" for v in values) + "</tr>"

    head = "<tr><th>ms</th><th>mean</th><th>p50</th><th>p90</th><th>p99</th></tr>"
    rows = row("time to first token", summary.ttft) + row("time per output token", summary.tpot)
    rows += row("inter-token latency", summary.itl) + row("end to end", summary.e2e)
    return f"<table>{head}{rows}</table>"


def _latency_plot(title: str, outcome: Outcome, value: Callable[[RequestRecord], float]) -> str:
    """Plot median and 99th percentile of the requests that arrived in each stretch of time."""
    buckets = _by_arrival(outcome.records, value)
    lines = [
        Line(f"p{share}", [(at, percentile(values, share / 100)) for at, values in buckets])
        for share in (50, 99)
    ]
    return plot(title, lines, unit="ms, by time of arrival")


def _hit_plot(outcome: Outcome) -> str:
    found = _by_arrival(outcome.records, lambda r: r.first_reused_tokens / r.prompt_tokens)
    points = [(at, sum(values) / len(values)) for at, values in found]
    return plot("Prompt tokens from the cache", [Line("mean share", points)], top=1.0)


def _throughput_plot(outcome: Outcome) -> str:
    line = Line("of requests that end", throughput(outcome.records))
    return plot("Output tokens a second", [line], unit="tokens/s")


def throughput(records: Sequence[RequestRecord]) -> list[Point]:
    """Return (seconds, tokens a second of the requests that end) of equal stretches of time."""
    ends = [(r.finish_ms / 1000, r.received_tokens) for r in records if r.finish_ms is not None]
    width = max((at for at, _ in ends), default=1.0) / _BUCKETS or 1.0
    sums = [0.0] * _BUCKETS
    for at, tokens in ends:
        sums[min(int(at / width), _BUCKETS - 1)] += tokens
    return [((i + 0.5) * width, total / width) for i, total in enumerate(sums)]


def _fleet_plot(samples: Sequence[Samples]) -> str:
    lines = [Line("running", _total(samples, 1)), Line("waiting", _total(samples, 2))]
    return plot("Requests in the fleet", lines)


def _worker_plot(
    title: str, samples: Sequence[Samples], column: int, *, top: float | None = None
) -> str:
    lines = [
        Line(f"worker {number}", thin_out([(row[0] / 1000, float(row[column])) for row in s.rows]))
        for number, s in enumerate(samples[:_MOST_LINES])
    ]
    return plot(title, lines, top=top)


def _total(samples: Sequence[Samples], column: int) -> list[Point]:
    """Return the sum over workers as it changes."""
    changes = sorted(
        (row[0], number, float(row[column])) for number, s in enumerate(samples) for row in s.rows
    )
    latest = [0.0] * len(samples)
    total, points = 0.0, list[Point]()
    for at, number, value in changes:
        total += value - latest[number]
        latest[number] = value
        points.append((at / 1000, total))
    return thin_out(points)


def _by_arrival(
    records: Sequence[RequestRecord], value: Callable[[RequestRecord], float]
) -> list[tuple[float, list[float]]]:
    """Return ascending values by the middle of the stretch of time in which requests came."""
    width = max((record.arrival_ms for record in records), default=0.0) / _BUCKETS / 1000 or 1.0
    buckets: dict[int, list[float]] = {}
    for record in records:
        measured = value(record)
        if not isnan(measured):
            buckets.setdefault(int(record.arrival_ms / 1000 / width), []).append(measured)
    return [((i + 0.5) * width, sorted(values)) for i, values in sorted(buckets.items())]
