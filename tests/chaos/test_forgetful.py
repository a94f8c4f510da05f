"""Runs whose broker forgot commits are not judged; all others are."""

from __future__ import annotations

from tests.chaos.forgetful import is_forgetful

FENCED = b"""\
[group-coordinator-event-processor-0] ERROR org.apache.kafka.coordinator.common.runtime.CoordinatorRuntime \
- [GroupCoordinator id=1] \
Writing records to __consumer_offsets-3 failed due to: For requests intended only for the leader, \
this error indicates that the broker is not the current leader.
"""
FORGETFUL = b"""\
[group-coordinator-event-processor-1] ERROR org.apache.kafka.coordinator.common.runtime.CoordinatorRuntime \
- [GroupCoordinator id=1] \
The state machine of the coordinator __consumer_offsets-1 is out of sync with the underlying log. \
The last written offset returned is 4836 while the coordinator expected 3. \
The coordinator will be reloaded in order to re-synchronize the state machine.
"""
LOADED_TWICE = b"""\
[group-coordinator-event-processor-0] INFO org.apache.kafka.coordinator.common.runtime.CoordinatorRuntime \
- [GroupCoordinator id=1] \
Ignored load completion from __consumer_offsets-1 because context is in ACTIVE state.
"""


def test_a_coordinator_that_went_to_work_half_loaded_is_told_by_its_log() -> None:
    """It says itself, at its first write, that it expected to be elsewhere."""
    assert is_forgetful(FENCED + FORGETFUL)
    assert is_forgetful(LOADED_TWICE)


def test_a_broker_that_lost_its_leadership_for_a_moment_is_judged() -> None:
    """That happens in every pause, and costs a client nothing that it does not know of."""
    assert not is_forgetful(FENCED)
    assert not is_forgetful(b"")
