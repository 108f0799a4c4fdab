"""A worker's metrics as Prometheus' own client library reads them."""

from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True)
class Scrape:
    """All samples of one scrape."""

    samples: list[Sample]

    def of(self, **labels: str) -> dict[str, float]:
        """Values by name of the samples that have these labels and no bucket."""
        return {
            sample.name: sample.value
            for sample in self.samples
            if labels.items() <= sample.labels.items() and "le" not in sample.labels
        }

    def total(self, name: str) -> float:
        return sum(sample.value for sample in self.samples if sample.name == name)

    def mean(self, histogram: str) -> float:
        return self.total(f"{histogram}_sum") / self.total(f"{histogram}_count")


async def scraped(http: aiohttp.ClientSession) -> Scrape:
    async with http.get("/metrics") as answer:
        text = await answer.text()
    return Scrape([s for family in text_string_to_metric_families(text) for s in family.samples])
