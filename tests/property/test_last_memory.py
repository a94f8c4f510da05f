"""The state of a partition with `LastId`, driven at random, against the naive oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from dedup_sdk._core.flight import OFFERED, SINGLE, RecordRef
from dedup_sdk._core.last import open_last
from dedup_sdk._core.last_rule import LastRule
from dedup_sdk._core.seen import Candidate, IdStatus
from dedup_sdk._core.source_keys import SourceKeys
from dedup_sdk._core.state import PartitionState
from dedup_sdk._decision import BelowFloor
from dedup_sdk._marks import NO_MARKS, NONE_FOUND, Found, Marks, Progress, join_marks, latest
from dedup_sdk._record import VerdictKind
from dedup_sdk._window import Window
from dedup_sdk.ids import header
from tests.model.last_id.rule import Answer, Ident, LastIdRule, Sent, fold_all
from tests.support.slashed import DenseSlashed, Slashed

WINDOW_MS = 1_000


KEYS = SourceKeys(header("id"), header("source"), "slashed")


def id_bytes(ident: Ident) -> bytes:
    """Return an ID as it travels."""
    return b"?" if ident.number is None else f"{ident.origin}/{ident.number}".encode()


def source_digest(name: str) -> bytes:
    """Return the digest by which a source is known here."""
    return name.encode().ljust(16, b".")


@dataclass
class Driven:
    """The state of a partition, the marks of its store, and the true history."""

    rule: LastRule
    state: PartitionState = field(init=False)
    steps: list[Progress] = field(default_factory=list)
    journal: list[Marks] = field(default_factory=list)
    stored: dict[bytes, tuple[int, int, bytes]] = field(default_factory=dict)
    log: list[Sent] = field(default_factory=list)
    ended: dict[int, str] = field(default_factory=dict)
    told: dict[int, tuple[VerdictKind, str]] = field(default_factory=dict)
    crashed: bool = False

    def __post_init__(self) -> None:
        self.state = open_last(self.rule, KEYS, Progress(low=0, high=0))

    def candidate(self, ident: Ident) -> Candidate:
        """Return an ID with its place."""
        return Candidate(id_bytes(ident), self.rule.order.sort_key(id_bytes(ident)))

    def find(self, digests: bytes, count: int) -> Found:
        """Look marks up as a store would."""
        assert len(digests) == 16 * count
        hits = [
            (i, self.stored[d]) for i in range(count) if (d := digests[16 * i : 16 * i + 16]) in self.stored
        ]
        if not hits:
            return NONE_FOUND
        return Found(
            [i for i, _ in hits],
            [h[0] for _, h in hits],
            [h[1] for _, h in hits],
            None,
            [h[2] for _, h in hits],
        )

    def admit(self, batch: list[Sent]) -> None:
        """Let records come."""
        chunk = self.state.admit(
            [sent.offset for sent in batch],
            np.asarray([sent.timestamp_ms for sent in batch], np.int64),
            [source_digest(sent.source) + id_bytes(sent.ident) for sent in batch],
            {},
            self.find,
            now_ms=2**53,
        )
        for row in range(len(batch)):
            self.note(RecordRef(chunk, row))

    def note(self, place: RecordRef) -> None:
        """Keep the verdict on a record, if it is final."""
        told = place.chunk.verdict(place.row)
        if told.kind is VerdictKind.HELD:
            return
        self.told[place.offset] = (told.kind, told.reason)
        if told.kind is VerdictKind.DUPLICATE:
            self.ended[place.offset] = "duplicate"

    def settle(self, offered: list[RecordRef]) -> None:
        """Take over the settled records."""
        for place in [*self.state.flight.settled, *offered]:
            self.note(place)
        self.state.flight.settled = []

    def open(self) -> list[RecordRef]:
        """Return the records that the application has."""
        places = [self.state.flight.place(sent.offset) for sent in self.log]
        return [place for place in places if place and place.chunk.states[place.row] in (OFFERED, SINGLE)]

    def complete(self, place: RecordRef) -> None:
        """Handle one."""
        self.ended[place.offset] = "handled"
        self.settle(self.state.complete(place.chunk, [place.row]))

    def complete_all(self, place: RecordRef) -> None:
        """Handle everything that was offered with a chunk."""
        for row, offset in enumerate(place.chunk.offsets):
            if place.chunk.states[row] == OFFERED:
                self.ended[offset] = "handled"
        self.settle(self.state.complete_chunk(place.chunk))

    def write(self) -> None:
        """Make completions durable."""
        step = self.state.take_step()
        if step is not None:
            self.steps.append(step.progress)
            self.journal.append(step.marks)

    def flush(self) -> None:
        """Turn the journal into marks to look up."""
        self.write()
        marks = self.state.memory.take_recent(-1, self.find).marks
        for index in range(marks.count):
            digest = marks.digests[16 * index : 16 * index + 16]
            assert marks.payloads is not None
            self.stored[digest] = (
                int(marks.offsets[index]),
                int(marks.timestamps[index]),
                marks.payloads[index],
            )
        self.steps, self.journal = [self.state.progress], []

    def crash(self) -> list[Sent]:
        """Open again with durable marks; return the records that come again."""
        self.crashed = True
        progress = latest(self.steps) or Progress(low=0, high=0)
        self.state = open_last(
            self.rule, KEYS, progress, join_marks(self.journal) if self.journal else NO_MARKS
        )
        again = [sent for sent in self.log if sent.offset >= progress.high]
        for sent in again:
            # Records handled and not written are handled again.
            self.ended.pop(sent.offset, None)
            self.told.pop(sent.offset, None)
        return again


RECORDS = st.tuples(
    st.sampled_from("xyz"),
    st.sampled_from("AAAAB"),
    st.one_of(st.integers(0, 12), st.none()),
    st.integers(0, 3),
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.lists(RECORDS, min_size=1, max_size=6)),
        st.tuples(st.sampled_from(["complete", "complete all", "release"]), st.integers(0, 30)),
        st.tuples(st.sampled_from(["write", "flush", "crash"]), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=400, deadline=None)
@given(
    actions=ACTIONS,
    depth=st.integers(0, 5),
    dense=st.booleans(),
    below_floor=st.sampled_from(["deliver", "discard"]),
    jump_ms=st.sampled_from([1, 400]),
)
def test_a_driven_partition_says_and_remembers_what_the_rule_does(
    actions: list[tuple[str, Any]], depth: int, dense: Any, below_floor: BelowFloor, jump_ms: int
) -> None:
    """Whatever becomes of records, verdicts and memories are those of the completed log."""
    rule = LastRule(
        DenseSlashed() if dense else Slashed(), depth, below_floor, Window(milliseconds=WINDOW_MS)
    )
    driven = Driven(rule)
    now_ms = 0
    for action, given_ in actions:
        if action == "admit":
            batch: list[Sent] = []
            for source, origin, number, later in given_:
                now_ms += later * jump_ms
                batch.append(Sent(len(driven.log) + len(batch), source, Ident(origin, number), now_ms))
            driven.log += batch
            driven.admit(batch)
        elif action in ("write", "flush"):
            getattr(driven, action)()
        elif action == "crash":
            again = driven.crash()
            if again:
                driven.admit(again)
        elif places := driven.open():
            place = places[given_ % len(places)]
            if action == "release":
                assert driven.state.flight.release(place) == [place]
            else:
                getattr(driven, action.replace(" ", "_"))(place)
    while places := driven.open():
        driven.complete(places[-1])
    driven.flush()
    assert driven.state.flight.high == len(driven.log)
    _check(driven, LastIdRule(reorder_depth=depth, below_floor=below_floor, dense=dense, window_ms=WINDOW_MS))


def _check(driven: Driven, rule: LastIdRule) -> None:
    done: dict[str, list[Sent]] = {source: [] for source in "xyz"}
    for sent in driven.log:
        known = fold_all(rule, done[sent.source])
        before = any(each.ident == sent.ident for each in done[sent.source])
        answer = rule.judge(known, sent.ident, timestamp_ms=sent.timestamp_ms)
        _check_verdict(driven, rule, sent, answer, before=before)
        done[sent.source].append(sent)
    for source, completed in done.items():
        _check_memory(driven, rule, source, completed)


def _check_verdict(driven: Driven, rule: LastIdRule, sent: Sent, expected: Answer, *, before: bool) -> None:
    told = driven.told[sent.offset]
    dropped = told[0] is VerdictKind.DUPLICATE
    if dropped and rule.below_floor == "deliver":
        assert before, f"{sent} was dropped, and nobody handled it before"
    if not rule.delivers(expected):
        assert dropped, (sent, told)
    elif expected is Answer.UNCOVERED:
        assert told == (VerdictKind.UNVERIFIED, "uncovered") or (dropped and before), (sent, told)
    elif expected is Answer.FRESH:
        # In flight more is known than a source remembers.
        assert told[0] is VerdictKind.FRESH or (dropped and before), (sent, told)


def _check_memory(driven: Driven, rule: LastIdRule, source: str, completed: list[Sent]) -> None:
    known, stored = fold_all(rule, completed), driven.stored.get(source_digest(source))
    assert (stored is None) == (known is None)
    if known is None or stored is None:
        return
    mark = driven.rule.restore(stored[2], stored[0], stored[1])
    last = max(sent.offset for sent in completed if sent.ident.number is not None)
    assert (mark.offset, mark.timestamp_ms) == (last, known.timestamp_ms)
    assert (mark.seen.known, mark.seen.forgot) == (known.known, known.forgot)
    for number in range(14):
        ident = known.kept[-1]._replace(number=number)
        fresh = IdStatus.NEWER if number > (known.kept[-1].number or 0) else IdStatus.UNSEEN
        expected = {
            Answer.FRESH: fresh,
            Answer.UNCOVERED: fresh,
            Answer.DUPLICATE: IdStatus.SEEN,
            Answer.BELOW_FLOOR: IdStatus.BELOW,
        }
        answer = rule.judge(known, ident, timestamp_ms=known.timestamp_ms)
        assert mark.seen.status(driven.candidate(ident)) is expected[answer]
