"""The scenario in which deployments change the ID spec, and are rolled back."""

from __future__ import annotations

import random
import time
from typing import Final

from dedup_sdk._commit_text import rule_named_in
from tests.chaos.group_offsets import await_committed, ends, send_apart, stands
from tests.chaos.history import ByKey, Forget, Rewind
from tests.chaos.options import ID_HEADER
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Stage
from tests.chaos.worker import strategy_of
from tests.support.consuming import rule_of
from tests.support.producing import Outgoing

_HOSTS: Final = 3
_ORDERS: Final = 3
"""How many messages have a key in common."""
_APART: Final = 60
_LEAST_ROLLS: Final = 3
_HANDED_OVER_S: Final = 90.0
_LOOK_S: Final = 0.3


def orders(number: int, _chosen: random.Random) -> Outgoing:
    """A message with an ID of its own; by its key it is one with the next two."""
    key = b"key-%d" % (number // _ORDERS)
    return Outgoing(key=key, value=b"%d" % number, headers={ID_HEADER: b"id-%d" % number})


def _spec_change(stage: Stage) -> None:
    """Roll from the key to the header, back and forth; messages that one hid are sent again to the other."""
    rolls = 0
    while rolls < _LEAST_ROLLS or stage.left_s > 0 or rolls % 2 == 0:
        idents = [b"spec-%d-%d" % (rolls, number) for number in range(_APART)]
        # One key for each partition: by that all but the first are duplicates.
        send_apart(stage, idents)
        stage.sleep(1.5)
        _roll(stage, by_key=rolls % 2 == 1)
        send_apart(stage, idents)
        per_second = stage.sender.pause()
        await_committed(stage)
        stage.sender.resume(per_second)
        rolls += 1


def _roll(stage: Stage, *, by_key: bool) -> None:
    """Put one worker after the other in place of those that go by the other spec, on their stores or on new ones."""
    began_ns, before = time.monotonic_ns(), stage.watch.patiently()
    stage.equip(by_key=by_key)
    if stage.random.random() < 0.5:
        stage.take_new_stores()
        stage.faults["new-stores"] += 1
    for host in range(_HOSTS):
        for run in stage.crew.alive:
            if run.host == host:
                if stage.random.random() < 0.3:
                    stage.kill(run)
                else:
                    stage.leave(run)
        stage.start(host)
        stage.about(1.0)
    stage.faults["roll-to-key" if by_key else "roll-to-header"] += 1
    to = ends(stage)
    for partition, end in to.items():
        low = before.get(partition, 0) if by_key else 0
        stage.by_key.append(ByKey(partition=partition, low=low, high=end))
    _await_the_new_rule(stage)
    _excuse_hand_overs(stage, began_ns, ends(stage))


def _await_the_new_rule(stage: Stage) -> None:
    """Wait until the commit of every partition names the rule of today's workers.

    From then on no hand-over has its history begin anew.
    """
    rule = rule_of(strategy_of(stage.options), stage.topic)
    deadline = time.monotonic() + _HANDED_OVER_S
    while (now := {each: rule_named_in(text) for each, (_, text) in stands(stage).items()}) != dict.fromkeys(
        range(stage.watch.partitions), rule
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{stage.topic}: not all of it was committed by rule {rule} within {_HANDED_OVER_S:g} s: {now}"
            )
        stage.sleep(_LOOK_S)


def _excuse_hand_overs(stage: Stage, since_ns: int, to: dict[int, int]) -> None:
    """Note for each partition that came to a worker since then.

    The history may have begun anew there, for it goes by another spec.
    """
    for notice in stage.crew.history()[1]:
        if notice.kind == "assigned" and notice.at_ns >= since_ns:
            committed = stage.watch.before(notice.at_ns)
            for partition in notice.partitions:
                offset = committed.get(partition, 0)
                stage.excuses.append(Rewind(partition=partition, low=offset, high=to[partition]))
                stage.excuses.append(Forget(partition=partition, offset=offset))


SPEC_CHANGE: Final = Scenario(
    name="spec-change",
    summary="rolling deployments change the ID spec from the key to a header, back and again, with the same "
    "stores and with new ones",
    play=_spec_change,
    broken="believe-another-rule",
    disks=None,
    per_second=60.0,
    work_ms=2.0,
    by_key=True,
    recipe=orders,
    short_s=20.0,
)
