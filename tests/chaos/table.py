"""All scenarios, by name."""

from __future__ import annotations

from typing import Final

from tests.chaos.bridge_faults import BRIDGE
from tests.chaos.cluster_faults import (
    BAD_DISK,
    BROKER,
    CORRUPTION,
    DISK_FULL,
    DISK_FULL_UNVERIFIED,
    NETWORK,
    STORE_DELETED,
)
from tests.chaos.inbox_faults import INBOX, INBOX_OFFSETS
from tests.chaos.letter_faults import DEAD_LETTERS
from tests.chaos.memory_faults import SHARED, SHARED_SQL
from tests.chaos.operator_faults import OPERATOR
from tests.chaos.outbox_faults import OUTBOX
from tests.chaos.process_faults import KILL, SLOW_HANDLER, STORM, ZOMBIE
from tests.chaos.restore_faults import RESTORED_BROKER
from tests.chaos.rule_faults import SPEC_CHANGE
from tests.chaos.scenario import Scenario
from tests.chaos.snapshot_faults import SNAPSHOTS
from tests.chaos.soak import SOAK
from tests.chaos.topic_faults import CLOCK, HOSTILE_IDS, PARTITIONS_ADDED, TOPIC_CHANGES, TRANSACTIONS
from tests.chaos.transaction_faults import EXACTLY_ONCE
from tests.chaos.unit_faults import UNITS

SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        KILL,
        ZOMBIE,
        STORM,
        BROKER,
        NETWORK,
        SLOW_HANDLER,
        STORE_DELETED,
        CORRUPTION,
        SNAPSHOTS,
        BAD_DISK,
        DISK_FULL,
        DISK_FULL_UNVERIFIED,
        DEAD_LETTERS,
        TOPIC_CHANGES,
        OPERATOR,
        SPEC_CHANGE,
        RESTORED_BROKER,
        PARTITIONS_ADDED,
        TRANSACTIONS,
        EXACTLY_ONCE,
        CLOCK,
        HOSTILE_IDS,
        OUTBOX,
        BRIDGE,
        INBOX,
        INBOX_OFFSETS,
        UNITS,
        SHARED,
        SHARED_SQL,
        SOAK,
    )
}
