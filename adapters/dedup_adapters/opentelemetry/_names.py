"""Names of attributes: those of OpenTelemetry's conventions for messaging, and our own.

The conventions for messaging are still in development. Names that change there change here, and nowhere else.
"""

from typing import Final

SCOPE: Final = "dedup_adapters.opentelemetry"
"""The name of the meter and the tracer."""

SYSTEM: Final = "messaging.system"
OPERATION_TYPE: Final = "messaging.operation.type"
OPERATION_NAME: Final = "messaging.operation.name"
TOPIC: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
OFFSET: Final = "messaging.kafka.offset"
BATCH: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

OURS: Final = "dedup."
VERDICT: Final = f"{OURS}verdict"
REASON: Final = f"{OURS}reason"
ATTEMPT: Final = f"{OURS}attempt"

OF_LABELS: Final = {"group": GROUP, "topic": TOPIC, "partition": PARTITION}
"""The conventions' names for labels of metrics; the other labels are ours."""
UNITS: Final = {"": "", "seconds": "s", "bytes": "By"}
