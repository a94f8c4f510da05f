"""Engine and store through crashes where IDs are compared.

Nothing is lost, and sources agree with their log.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dedup_sdk import Deduplicator, LastId, Lookup, Record, Verdict, VerdictKind, Window, header, orders
from tests.model.last_id.rule import Answer, Ident, LastIdRule, Sent, fold_all
from tests.support.disks import keeping
from tests.support.surviving import Disk, MemoryDisk, RocksDisk

WINDOW_MS = 1_000_000
RECORDS = st.tuples(st.sampled_from("xy"), st.integers(0, 15))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.lists(RECORDS, min_size=1, max_size=6)),
        st.tuples(st.sampled_from(["complete", "complete", "dead_letter", "release"]), st.integers(0, 30)),
        st.tuples(st.sampled_from(["crash", "reopen"]), st.just(0)),
    ),
    max_size=25,
)


def ident_of(sent: Sent) -> str:
    """Return the other ID of a record, by which a second opinion knows it."""
    return f"ident-{(sent.ident.number or 0) + sent.offset % 3}"


class Living:
    """A group's consumer of one partition; the log, and the fate of its records, outlive it."""

    def __init__(self, strategy: LastId, disk: Disk, recent_marks: int) -> None:
        self.strategy = strategy
        self.disk = disk
        self.recent_marks = recent_marks
        self.log: list[Sent] = []
        self.ended: dict[int, str] = {}
        self.told: dict[int, Verdict] = {}
        self.open: dict[int, Record] = {}
        self.asked: dict[int, str] = {}
        """The other ID of records that are questions."""
        self.begin()

    def begin(self) -> None:
        """Open the engine; records not over come again."""
        self.open.clear()
        self.engine = Deduplicator(self.strategy, keeping(self.recent_marks, self.disk.store()))
        self.admit(self.log)

    def admit(self, batch: list[Sent]) -> None:
        """Let records come."""
        records = [
            Record(
                "t",
                0,
                sent.offset,
                timestamp_ms=sent.timestamp_ms,
                headers=(
                    ("source", sent.source.encode()),
                    ("seq", str(sent.ident.number).encode()),
                    ("ident", self.asked.get(sent.offset, ident_of(sent)).encode()),
                ),
            )
            for sent in batch
        ]
        for record, told in zip(records, self.engine.admit(records), strict=True):
            if told.kind is VerdictKind.REDELIVERED:
                assert record.offset in self.ended, f"{record} was never handled"
            elif told.kind is not VerdictKind.HELD:
                # Records handled above a gap are handled again.
                self.ended.pop(record.offset, None)
                self.note(record, told)
            else:
                self.ended.pop(record.offset, None)

    def note(self, record: Record, told: Verdict) -> None:
        """Keep a final verdict."""
        self.told[record.offset] = told
        if told.deliver:
            self.open[record.offset] = record
        else:
            self.ended[record.offset] = "duplicate"

    def end(self, how: str, which: int) -> None:
        """End a record that was delivered."""
        if not self.open:
            return
        offset = sorted(self.open)[which % len(self.open)]
        if how != "release":
            self.ended[offset] = "handled"
        settled = getattr(self.engine, how)([self.open.pop(offset)])
        for each in settled:
            self.note(each.record, each.verdict)


@pytest.mark.slow
@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "rocks"])
def test_no_life_loses_or_forgets(*, in_memory: bool) -> None:
    """Through any order of crashes, whatever is dropped was handled, and the state agrees with the log."""

    @settings(max_examples=150 if in_memory else 15, deadline=None)
    @given(
        actions=ACTIONS,
        depth=st.integers(0, 4),
        below_floor=st.sampled_from(["deliver", "discard"]),
        recent_marks=st.sampled_from([1, 1000]),
        second=st.booleans(),
    )
    def lives(
        actions: list[tuple[str, Any]], depth: int, below_floor: Any, recent_marks: int, second: Any
    ) -> None:
        strategy = LastId(
            id=header("seq"), source=header("source"), order=orders.integer(), reorder_depth=depth,
            below_floor=below_floor,
            window=Window(milliseconds=WINDOW_MS),
            otherwise=Lookup(id=header("ident"), window=Window(milliseconds=WINDOW_MS)) if second else None,
        )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="dedup-last-") as folder:
            disk: Disk = MemoryDisk() if in_memory else RocksDisk(Path(folder))
            living = Living(strategy, disk, recent_marks)
            for action, given_ in actions:
                if action == "admit":
                    first = len(living.log)
                    batch = [
                        Sent(first + at, source, Ident("", number), first + at)
                        for at, (source, number) in enumerate(given_)
                    ]
                    living.log += batch
                    living.admit(batch)
                elif action == "crash":
                    disk.crash(living.engine)
                    living.begin()
                elif action == "reopen":
                    living.engine.shut()
                    living.begin()
                else:
                    living.end(action, given_)
            while living.open:
                living.end("complete", 0)
            _check(living, depth, below_floor)
            living.engine.shut()

    lives()


def _check(living: Living, depth: int, below_floor: str) -> None:
    assert sorted(living.ended) == list(range(len(living.log))), "a record was never handled"
    done: dict[str, list[Sent]] = {"x": [], "y": []}
    idents: set[str] = set()
    for sent in living.log:
        told = living.told[sent.offset]
        if told.kind is VerdictKind.DUPLICATE and below_floor == "deliver":
            same = sent.ident in [each.ident for each in done[sent.source]]
            known_otherwise = living.strategy.otherwise and ident_of(sent) in idents
            assert same or known_otherwise, f"{sent} was dropped, and never handled"
        done[sent.source].append(sent)
        idents.add(ident_of(sent))
    _check_sources(living, done, depth, below_floor)
    if living.strategy.otherwise:
        for ident in [f"ident-{number}" for number in range(20)]:
            told = _ask(living, Sent(len(living.log), "x", Ident("", None), len(living.log)), ident)
            assert told.kind is (VerdictKind.DUPLICATE if ident in idents else VerdictKind.FRESH), (
                ident,
                told,
            )


def _ask(living: Living, sent: Sent, ident: str) -> Verdict:
    """Return the verdict on a record; nothing of it is to be remembered."""
    living.asked[sent.offset] = ident
    living.log.append(sent)
    living.admit([sent])
    if living.told[sent.offset].deliver:
        # It was never sent.
        del living.log[-1]
        living.engine.shut()
        living.begin()
    return living.told[sent.offset]


def _check_sources(living: Living, done: dict[str, list[Sent]], depth: int, below_floor: str) -> None:
    rule = LastIdRule(reorder_depth=depth, dense=True, window_ms=WINDOW_MS)
    for source, completed in done.items():
        known = fold_all(rule, completed)
        for number in range(17):
            end = len(living.log)
            sent = Sent(end, source, Ident("", number), end)
            expected = rule.judge(known, sent.ident, timestamp_ms=end)
            told = _ask(living, sent, f"nobody's {end}")
            if expected is not Answer.BELOW_FLOOR:
                assert told.kind.value == expected.value, (sent, told)
            elif below_floor == "discard":
                assert told.kind is VerdictKind.DUPLICATE
            else:
                doubt = VerdictKind.FRESH if living.strategy.otherwise else VerdictKind.UNVERIFIED
                assert told.kind is doubt, (sent, told)
