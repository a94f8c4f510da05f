"""Every way of breaking the design, in the real code: each does harm that the histories, or the worlds, name."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import _decision as decision
from dedup_sdk._commit_text import CommitMetadata, parse_metadata
from dedup_sdk._core import lookup
from dedup_sdk._core.flight import HELD, KINDS, SINGLE, Chunk, Flight, RecordRef, digest_of
from dedup_sdk._core.lookup import LookupMemory, Waiting
from dedup_sdk._core.reach import plan_start
from dedup_sdk._core.recent import Existing, RecentMarks
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.recover import history, recovery, snapshot
from dedup_sdk._record import VerdictKind
from dedup_sdk._store import memory
from tests.model.engine_host import EngineHost
from tests.model.history import History
from tests.model.snapshot_host import SnapshotHost
from tests.model.test_design import BROKEN
from tests.model.test_worlds import commit_the_position, remember_no_dead_letter
from tests.model.worlds.life import Life
from tests.model.worlds.world import WORLDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.model.design import Rules

_SEEDS = 400
_FIRST = {
    frozenset({"a_text_is_not_bound_to_its_offset"}): 40,
    frozenset({"a_text_is_not_bound_to_its_rule"}): 200,
}
"""Where to begin: some histories are rare."""
_LIVES = 60


# --- snapshots
# ---------------------------------------------------------------------------------------------------------


def take_any_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is taken also where its cut lies beyond the group's commit.

    Up to there it counts as completed.
    """
    for module in (snapshot, memory):
        fitting = module.fitting_partition

        def unlimited(
            folder: Any, manifest: Any, identity: Any, progress: Any, *, numbered: bool, asked: Any = fitting
        ) -> Any:
            return asked(folder, manifest, identity, replace(progress, high=2**40), numbered=numbered)

        patch.setattr(module, "fitting_partition", unlimited)


def take_marks_beyond_the_commit(patch: pytest.MonkeyPatch) -> None:
    """The same, but only its marks are believed: nothing beyond the commit counts as completed."""
    take_any_snapshot(patch)
    after = snapshot._plan_after_snapshot

    def limited(part: Any, plan: Any) -> Any:
        return after(replace(part, high=min(part.high, plan.replay_to)), plan)

    patch.setattr(snapshot, "_plan_after_snapshot", limited)


def take_an_equal_offset_for_a_sighting(patch: pytest.MonkeyPatch) -> None:
    """A mark at the record's own offset makes it a duplicate."""
    decide = decision.decide

    def careless(offset: int, *others: Any, **named: Any) -> Any:
        mark = others[1]
        if mark is not None and mark.offset == offset:
            others = (others[0], mark._replace(offset=offset - 1), *others[2:])
        return decide(offset, *others, **named)

    patch.setattr(lookup, "decide", careless)


# --- completion
# --------------------------------------------------------------------------------------------------------


def mark_before_completion(patch: pytest.MonkeyPatch) -> None:
    """A record handed out is written down as completed."""
    admit = Partition.admit

    def eager(self: Partition, *arguments: Any, **named: Any) -> list[Chunk]:
        chunks = admit(self, *arguments, **named)
        for chunk in chunks:
            self.state.complete_chunk(chunk)
        return chunks

    patch.setattr(Partition, "admit", eager)


def promote_a_twin(patch: pytest.MonkeyPatch) -> None:
    """In place of a record that is handed back its twin is offered."""
    release = Partition.release

    def promote(self: Partition, offsets: list[int]) -> list[RecordRef]:
        [offset] = offsets
        place = self.flight.place(offset)
        assert place is not None
        chunk, index = place
        digest = digest_of(chunk, index)
        if not self.flight.waiting.get(digest):
            return release(self, offsets)
        twin, row, _ = self.flight.waiting[digest].popleft()
        self.flight.waiting[digest].append(Waiting(chunk, index, None))
        chunk.states[index] = HELD
        twin.states[row] = SINGLE
        twin.verdicts[row] = KINDS.index(VerdictKind.FRESH)
        _recent(self).put(digest, twin.offsets[row], int(twin.timestamps[row]))
        return [RecordRef(twin, row)]

    patch.setattr(Partition, "release", promote)


def _recent(held: Partition) -> RecentMarks:
    assert isinstance(held.memory, LookupMemory)
    return held.memory.recent


def do_not_refresh(patch: pytest.MonkeyPatch) -> None:
    """The window is measured from the first sighting: a duplicate leaves its ID's mark where it is."""

    def repeat(self: LookupMemory, chunk: Chunk, index: int, _: Any) -> None:
        chunk.finish(index)
        chunk.unmarked.add(index)
        self.recent.drop(digest_of(chunk, index), chunk.offsets[index])

    def each(
        _self: LookupMemory, _chunk: Chunk, _asked: Any, met: Existing, stored: dict[int, Any]
    ) -> list[int]:
        return sorted({*met.indexes.tolist(), *stored})

    patch.setattr(LookupMemory, "_meet_columns", each)
    patch.setattr(LookupMemory, "_repeat", repeat)


# --- where the history begins
# -------------------------------------------------------------------------------------------


def never_raise_low(patch: pytest.MonkeyPatch) -> None:
    """Records jumped over count as processed."""

    def planned(stored: Any, *, low: int, **others: Any) -> Any:
        return plan_start(stored, low=low if stored is None else min(low, stored.low), **others)

    patch.setattr(history, "plan_start", planned)


def do_without_metadata(patch: pytest.MonkeyPatch) -> None:
    """A commit that does not say where the history begins is taken for one of a history without gaps."""
    plan = history.start_plan

    def planned(held: Any, start: Any, client: Any, chosen: Any) -> Any:
        return plan(held, start, client, replace(chosen, history="assume-processed"))

    patch.setattr(recovery, "start_plan", planned)


def keep_the_era_beside_a_void_text(patch: pytest.MonkeyPatch) -> None:
    """A commit without a valid text is compared with what one host happens to know."""

    def compare(stored: Any, **named: Any) -> Any:
        known = stored is not None and not named["vouched"]
        return plan_start(stored, **{**named, "era": stored.era if known else named["era"]})

    patch.setattr(history, "plan_start", compare)


def keep_marks_of_every_era(patch: pytest.MonkeyPatch) -> None:
    """A store keeps its marks, whatever era the group is in."""

    def keep(stored: Any, **named: Any) -> Any:
        return plan_start(None if stored is None else replace(stored, era=named["era"]), **named)

    patch.setattr(history, "plan_start", keep)


# --- the text of a commit
# -----------------------------------------------------------------------------------------


def believe_texts_anywhere(patch: pytest.MonkeyPatch) -> None:
    """A text counts at an offset that it was not written for."""

    def believed(text: object, offset: int) -> CommitMetadata | None:
        if not isinstance(text, str):
            return None
        at = int(text.split(" at=")[1].split()[0])
        found = parse_metadata(text, committed=at)
        return None if found is None else replace(found, low=min(found.low, offset), done=None)

    patch.setattr(EngineHost, "_parsed", staticmethod(believed))


def believe_any_rule(patch: pytest.MonkeyPatch) -> None:
    """Records hidden by another ID spec count as handled by this one."""

    def believed(self: EngineHost, assignment: Any) -> CommitMetadata | None:
        found = self._parsed(assignment.commit.text, assignment.commit.offset)
        return None if found is None else replace(found, done=None)

    patch.setattr(EngineHost, "_believed", believed)


def say_nothing_above_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Completions above the commit do not travel."""
    patch.setattr(Partition, "tell_completed", lambda *_, **__: None)


def leave_no_mark_of_what_is_told(patch: pytest.MonkeyPatch) -> None:
    """Records told by a text are hidden when read, and not remembered."""
    hide = Partition._hide_reported

    def forgetful(self: Partition, chunk: Chunk, rows: list[int]) -> None:
        before = dict(enumerate(chunk.verdicts))
        hide(self, chunk, rows)
        for row, kind in enumerate(chunk.verdicts):
            digest = chunk.digests[row]
            if kind != before[row] and digest is not None:
                chunk.unmarked.add(row)
                _recent(self).drop(digest, chunk.offsets[row])

    patch.setattr(Partition, "_hide_reported", forgetful)


def pass_what_is_told_at_once(patch: pytest.MonkeyPatch) -> None:
    """Records told by a text count as completed before they are read."""
    tell = Flight.report_completed

    def passing(self: Flight, ranges: Any, *more: Any) -> None:
        tell(self, ranges, *more)
        self.restored = (*self.restored, *self.reported_ranges)
        self.reported_ranges = ()

    patch.setattr(Flight, "report_completed", passing)


_OF_THE_LOG = [
    frozenset({name})
    for name in (
        "told_offsets_need_no_witness",
        "a_store_needs_no_witness",
        "marks_are_not_asked_for_a_contradiction",
    )
]
"""Those that only a broker shows which was restored from a backup: `tests/unit/kafka/test_log_check.py` and
`tests/integration/kafka/test_restored_broker.py` have them."""

_WORLDS: dict[frozenset[str], tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    frozenset({"commit_the_position"}): ("crashes", commit_the_position),
    frozenset({"mark_before_completion", "equal_offset_is_redelivered"}): ("crashes", mark_before_completion),
    frozenset({"a_dead_letter_leaves_no_mark"}): ("dead-letters", remember_no_dead_letter),
    frozenset({"duplicates_do_not_refresh"}): ("crashes", do_not_refresh),
    frozenset({"low_never_rises"}): ("operators", never_raise_low),
    frozenset({"metadata_is_optional"}): ("operators", do_without_metadata),
    frozenset({"a_void_text_keeps_the_era"}): ("operators", keep_the_era_beside_a_void_text),
    frozenset({"marks_outlive_every_era"}): ("operators", keep_marks_of_every_era),
}
"""The broken rules that worlds show, with the world and the change of the code.

Completion is one write in the code, the mark and
the watermark: that makes a mark before completion harm by itself."""

_HISTORIES: dict[frozenset[str], tuple[str, list[Callable[[pytest.MonkeyPatch], None]]]] = {
    frozenset({"release_promotes_a_twin"}): ("leaked", [promote_a_twin]),
    frozenset({"trust_a_snapshot_as_completed"}): ("lost", [take_any_snapshot]),
    frozenset({"a_text_is_not_bound_to_its_offset"}): ("lost", [believe_texts_anywhere]),
    frozenset({"a_text_is_not_bound_to_its_rule"}): ("lost", [believe_any_rule]),
    frozenset({"nothing_above_the_commit_travels"}): ("doubled", [say_nothing_above_the_commit]),
    frozenset({"told_offsets_leave_no_mark"}): ("leaked", [leave_no_mark_of_what_is_told]),
    frozenset({"told_offsets_are_done_at_once"}): ("leaked", [pass_what_is_told_at_once]),
    frozenset({"snapshot_beyond_the_commit"}): ("leaked", [take_marks_beyond_the_commit]),
    frozenset({"snapshot_beyond_the_commit", "equal_offset_is_redelivered"}): (
        "lost",
        [take_marks_beyond_the_commit, take_an_equal_offset_for_a_sighting],
    ),
}
"""Those that histories with snapshots show, with the harm that they do."""


def _outcome(seed: int, folder: Path) -> str:
    numbers = itertools.count()
    return History(seed, lambda: SnapshotHost(10, folder / f"{seed}-{next(numbers)}"), restores=False).run()


def _rules(rules: Rules) -> frozenset[str]:
    return frozenset(name for name in rules.__slots__ if getattr(rules, name))


def test_every_broken_rule_of_the_design_is_broken_in_the_code() -> None:
    """No way of breaking the design is left out."""
    assert {*_WORLDS, *_HISTORIES, *_OF_THE_LOG} == {_rules(rules) for rules in BROKEN}


@pytest.mark.slow
def test_snapshots_neither_lose_nor_leak(tmp_path: Path) -> None:
    """Snapshots of any cut cost no record and no twin: those that reach too far are not taken."""
    assert Counter(_outcome(seed, tmp_path) for seed in range(60)) == {"ok": 60}


@pytest.mark.parametrize("rules", _WORLDS, ids="+".join)
def test_a_broken_rule_harms_a_world(rules: frozenset[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that breaks it does the harm that the world's oracle names."""
    name, breaking = _WORLDS[rules]
    breaking(monkeypatch)
    assert any(Life(WORLDS[name], seed).run() != "ok" for seed in range(_LIVES))


@pytest.mark.parametrize("rules", _HISTORIES, ids="+".join)
def test_a_broken_rule_does_its_harm(
    rules: frozenset[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The histories show just the harm that breaking it does."""
    harm, breakings = _HISTORIES[rules]
    for breaking in breakings:
        breaking(monkeypatch)
    first = _FIRST.get(rules, 0)
    assert any(_outcome(seed, tmp_path) == harm for seed in range(first, first + _SEEDS))
