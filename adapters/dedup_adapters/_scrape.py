"""The page that Prometheus reads, from a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dedup_adapters.prometheus import DedupCollector

if TYPE_CHECKING:
    from dedup_adapters._looks import AnyConsumer


def scrape_of(consumers: Iterable[AnyConsumer]) -> Callable[[], tuple[str, str]]:
    """Return a function that returns the metrics of consumers as text, and its media type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    registry = CollectorRegistry()
    registry.register(DedupCollector(*consumers))
    return lambda: (generate_latest(registry).decode(), CONTENT_TYPE_LATEST)
