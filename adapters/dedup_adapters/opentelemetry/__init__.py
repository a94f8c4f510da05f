"""Metrics and spans of consumers for OpenTelemetry (extra ``[opentelemetry]``: its API; your program brings an SDK).

from dedup_adapters.opentelemetry import DedupInstruments, Tracing

instruments = DedupInstruments(consumer)
tracing = Tracing(consumer)
consumer.run(tracing.handler(charge), workers=4)
"""

try:
    import opentelemetry.trace  # noqa: F401 (whether it is there)
except ImportError as error:  # pragma: no cover (the environment has it)
    raise ImportError(
        "dedup_adapters.opentelemetry needs OpenTelemetry's API: pip install 'dedup-sdk[opentelemetry]'"
    ) from error

from dedup_adapters.opentelemetry._instruments import DedupInstruments
from dedup_adapters.opentelemetry._tracing import Tracing

__all__ = ["DedupInstruments", "Tracing"]
