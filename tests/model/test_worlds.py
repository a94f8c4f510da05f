"""The real session, recovery, engine and stores live through every world; a rule that is broken there is seen."""

from __future__ import annotations

import itertools
import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import _decision as decision
from dedup_sdk._core import lookup
from dedup_sdk._core.count_window import CountWindow
from dedup_sdk._core.fallback import FallbackIds
from dedup_sdk._core.flight import digest_of
from dedup_sdk._core.last import LastMemory
from dedup_sdk._core.last_rule import LastRule, SourceState
from dedup_sdk._core.lookup import LookupMemory
from dedup_sdk._core.seen import IdStatus
from dedup_sdk._core.sources import Sources
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition, Writer
from dedup_sdk._kafka.assign import commits
from dedup_sdk._kafka.recover import history, session
from dedup_sdk._kafka.recover.upkeep import Upkeep
from dedup_sdk._store.memory import MemoryPartition
from dedup_sdk._store.rocks import RocksStore
from tests.model.worlds.client import ModelClient
from tests.model.worlds.exactly_once import TransactionRules
from tests.model.worlds.life import Life
from tests.model.worlds.world import WORLDS
from tests.support.fresh_seeds import histories
from tests.support.set_back_member import resumption_in_the_old_era
from tests.support.turns import in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path


SEEDS = int(os.environ.get("DEDUP_MODEL_SEEDS", "3"))
"""Histories of each world, others in each run; thousands are for long runs."""
_CATCHING = 60
_SEEN_FROM = {"every_offset_proves_a_commit": 558}
"""The first seeds for broken rules that one life of six hundred needs."""
_FIRST_CAUGHT = {
    "go_on_in_the_old_era": 36,
    "never_pause": 40,
    "trust_an_old_mark": 20,
    "trust_sources_that_miss_records": 10,
}
"""Where the search for a history that notices a broken rule begins: some are rare."""


@pytest.mark.parametrize("name", [*WORLDS])
def test_no_world_breaks_a_promise(name: str, fresh_seed: int) -> None:
    """Whatever happens in it, nothing is lost, doubled, repeated from a disk that knew it, kept for ever, or stuck."""
    outcomes = {seed: Life(WORLDS[name], seed).run() for seed in histories(fresh_seed, SEEDS)}
    assert {seed: outcome for seed, outcome in outcomes.items() if outcome != "ok"} == {}


@pytest.mark.parametrize("seed", [53, 81])
def test_a_file_of_late_records_leaves_before_older_files(seed: int) -> None:
    """The store has no marks of their offsets then, so that a record there without a mark proves no other log."""
    world = replace(WORLDS["two-groups"], in_time=0.0)
    assert Life(world, seed).run() == "ok"


@pytest.mark.parametrize("seed", [80, 102, 169])
def test_a_restored_log_is_compared_also_where_its_epoch_is_the_same(seed: int) -> None:
    """It is shorter than what a store has completed, and other records are in the places of those that it lost."""
    assert Life(WORLDS["restored"], seed).run() == "ok"


@pytest.mark.parametrize("name", ["crashes", "rings", "full-disk"])
def test_no_world_breaks_a_promise_on_rocksdb(name: str, tmp_path: Path, fresh_seed: int) -> None:
    """The store on a disk keeps the same as the one in memory."""
    numbers = itertools.count()

    def make_store() -> RocksStore:
        return RocksStore(tmp_path / str(next(numbers)), generation_marks=3, block_cache_bytes=2**20)

    world = replace(WORLDS[name], steps=120)
    outcomes = {seed: Life(world, seed, make_store).run() for seed in histories(fresh_seed, 2)}
    assert {seed: outcome for seed, outcome in outcomes.items() if outcome != "ok"} == {}


@pytest.mark.parametrize("broken", [each.name for each in fields(TransactionRules)])
def test_each_rule_of_transactions_is_needed(broken: str) -> None:
    """Marks before the commit, offsets outside, metadata taken late, an unknown end guessed: each loses or doubles."""
    rules = TransactionRules(**{broken: True})
    first = _SEEN_FROM.get(broken, 0)
    seeds = range(first, first + 2 * _CATCHING)
    outcomes = (Life(WORLDS["exactly-once"], seed, rules=rules).run() for seed in seeds)
    assert any(outcome != "ok" for outcome in outcomes)


# --- broken variants
# ---------------------------------------------------------------------------------------------------


def commit_the_position(patch: pytest.MonkeyPatch) -> None:
    """Records handed out are committed, done or not."""
    completed = commits._completed_prefix

    def position(assigned: Any) -> Any:
        recovered = assigned.recovered
        if completed(assigned) is None or recovered is None:
            return None
        return recovered.commit_of(recovered.partition.flight.position)

    patch.setattr(commits, "_completed_prefix", position)


def forget_what_was_before_a_seek(patch: pytest.MonkeyPatch) -> None:
    """What a seek moves away from is not committed."""
    patch.setattr(commits.Commits, "before_move", lambda *_: None)


def count_every_seek_above_the_watermark_as_forward(patch: pytest.MonkeyPatch) -> None:
    """What is in flight below its target is skipped, and what is completed behind that stays hidden."""
    begin = session._start_of_move
    patch.setattr(
        session,
        "_start_of_move",
        lambda known, high, at, **more: begin(known, high, at, **{**more, "own": high}),
    )


def skip_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A seek back begins where it says, whatever is not completed below that."""
    begin = session._start_of_move

    def careless(known: Any, high: int, at: int, **more: Any) -> Any:
        start = begin(known, high, at, **more)
        return start if start.offset >= at else replace(start, offset=at)

    patch.setattr(session, "_start_of_move", careless)


def go_on_in_the_old_era(patch: pytest.MonkeyPatch) -> None:
    """A store that goes on without a commit vouches for what other hosts completed before the group was set back."""
    patch.setattr(history, "_resume_without_commit", resumption_in_the_old_era())


def replay_the_aborted(patch: pytest.MonkeyPatch) -> None:
    """Recovery reads records that the consumer never saw."""
    patch.setattr(ModelClient, "uncommitted", property(lambda _: True, lambda *_: None), raising=False)


def mix_the_groups(patch: pytest.MonkeyPatch) -> None:
    """Groups on one disk share their marks."""
    identity = Deduplicator.identity_of
    patch.setattr(
        Deduplicator, "identity_of", lambda self, *arguments: replace(identity(self, *arguments), group="")
    )


def count_nothing(patch: pytest.MonkeyPatch) -> None:
    """A ring that never turns."""
    patch.setattr(CountWindow, "accepted_after", lambda *_: 0)


def never_pause(patch: pytest.MonkeyPatch) -> None:
    """However much waits, more is read."""
    patch.setattr(Upkeep, "_throttle", lambda *_: None)


def remember_no_dead_letter(patch: pytest.MonkeyPatch) -> None:
    """A dead letter leaves no mark: a resend is handled again."""
    complete = Partition.complete

    def without(self: Partition, offsets: list[int], **more: Any) -> Any:
        if more.get("dead_lettered"):
            for place in map(self.flight.place, offsets):
                assert place is not None
                place.chunk.unmarked.add(place.row)
                assert isinstance(self.memory, LookupMemory)
                self.memory.recent.drop(digest_of(*place), place.offset)
        return complete(self, offsets, **more)

    patch.setattr(Partition, "complete", without)


def owe_nothing(patch: pytest.MonkeyPatch) -> None:
    """Marks that a full disk refused are forgotten."""
    choke = Writer._note_disk_full

    def forgetful(self: Writer, error: Any) -> None:
        choke(self, error)
        self.unwritten_steps = []
        memory = self._state.memory
        assert isinstance(memory, LookupMemory)
        memory.recent.clear()

    patch.setattr(Writer, "_note_disk_full", forgetful)


def claim_what_was_skipped(patch: pytest.MonkeyPatch) -> None:
    """A recovery that was cut short says that it knows everything."""
    skip_to = Partition.skip_to

    def claim(self: Partition, offset: int) -> None:
        reach = self.memory.reach
        since = reach.since_ms, reach.since_number
        skip_to(self, offset)
        reach.since_ms, reach.since_number = since

    patch.setattr(Partition, "skip_to", claim)


def trust_an_old_mark(patch: pytest.MonkeyPatch) -> None:
    """A mark outside the window is taken for the last sighting also where later ones are unknown."""
    decide = decision.decide

    def trusting(*arguments: Any, mark: Any = None, **more: Any) -> Any:
        offset, timestamp_ms, *rest = arguments
        mark = rest[0] if rest else mark
        more["covered"] = more["covered"] or mark is not None
        return decide(offset, timestamp_ms, mark, **more)

    patch.setattr(lookup, "decide", trusting)


def believe_every_log(patch: pytest.MonkeyPatch) -> None:
    """Completions of an old log are taken for those of the new one."""

    def believe(_attempt: Any, start: Any, *_: Any, **__: Any) -> Generator[None, None, Any]:
        yield
        return start

    patch.setattr(history, "start_in_the_log", believe)


def believe_no_clock_that_goes_back(patch: pytest.MonkeyPatch) -> None:
    """A mark that is newer than the record is no mark."""
    decide, marked = decision.decide, decision.decide_marked

    def single(offset: int, timestamp_ms: int, mark: Any, **more: Any) -> Any:
        known = mark is not None and mark.timestamp_ms <= timestamp_ms
        return decide(offset, timestamp_ms, mark if known else None, **more)

    def columns(offsets: Any, times: Any, seen: Any, seen_ms: Any, window: Any) -> Any:
        return marked(offsets, times, seen, seen_ms, window) & (seen_ms <= times)

    patch.setattr(lookup, "decide", single)
    patch.setattr(lookup, "decide_marked", columns)


def believe_every_log_and_record(patch: pytest.MonkeyPatch) -> None:
    """Nor are the marks asked whether a record is the one that was completed at its offset."""
    believe_every_log(patch)
    patch.setattr(Partition, "another_log", lambda *_: None)


def hand_out_and_forget(patch: pytest.MonkeyPatch) -> None:
    """The state of a source moves when a record is handed out."""
    judge = LastMemory.judge

    def eager(self: LastMemory, chunk: Any, known: Any) -> None:
        judge(self, chunk, known)
        self.complete(chunk, None)

    patch.setattr(LastMemory, "judge", eager)


def never_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """An uncomparable ID leaves its source as it was."""
    completed = LastRule.completed

    def keep(self: LastRule, mark: Any, candidate: Any, **named: Any) -> Any:
        known = None if mark is None else self.alive(mark, named["timestamp_ms"])
        if known is not None and known.seen.status(candidate) is IdStatus.UNCOMPARABLE:
            return mark
        return completed(self, mark, candidate, **named)

    patch.setattr(LastRule, "completed", keep)


def begin_anew_and_know(patch: pytest.MonkeyPatch) -> None:
    """A source that begins anew passes for one of which all is known."""
    begin = LastRule.begin
    patch.setattr(LastRule, "begin", lambda self, candidate, **_: begin(self, candidate, knows_all=True))


def overlook_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A second opinion knows only IDs below the watermark."""
    patch.setattr(FallbackIds, "begin", lambda *_: None)


def drop_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """Marks that leave the disk for their age are not told."""
    expire = MemoryPartition.expire

    def silent(self: MemoryPartition, before_ms: int | None, up_to_number: int | None = None) -> None:
        expire(self, None if before_ms is None else before_ms + 30, up_to_number)

    patch.setattr(MemoryPartition, "expire", silent)


def forget_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """Marks that a full disk refused are given up, and not missed."""
    patch.setattr(LastMemory, "forget_all", lambda _: None)


def go_by_the_last_time(patch: pytest.MonkeyPatch) -> None:
    """A source is as old as its last record says."""

    def pass_by(self: SourceState, offset: int, timestamp_ms: int) -> None:
        self.offset, self.timestamp_ms = offset, timestamp_ms

    patch.setattr(SourceState, "pass_by", pass_by)


def trust_sources_that_miss_records(patch: pytest.MonkeyPatch) -> None:
    """Of sources all is known also where records of theirs were passed that nobody folded."""
    patch.setattr(Sources, "doubt_all", lambda _: None)


@in_turns(
    ("name", "breaking"),
    [
        ("crashes", commit_the_position),
        ("seeks", forget_what_was_before_a_seek),
        ("seeks", count_every_seek_above_the_watermark_as_forward),
        ("seeks", skip_what_is_in_flight),
        ("deletions", go_on_in_the_old_era),
        ("transactions", replay_the_aborted),
        ("two-groups", mix_the_groups),
        ("rings", count_nothing),
        ("parking", never_pause),
        ("dead-letters", remember_no_dead_letter),
        ("full-disk", owe_nothing),
        ("impatience", claim_what_was_skipped),
        ("impatience", trust_an_old_mark),
        ("wild-times", believe_no_clock_that_goes_back),
        ("truncation", believe_every_log),
        ("restored", believe_every_log_and_record),
        ("restored-sources", believe_every_log_and_record),
        ("sources-alone", hand_out_and_forget),
        ("idle-sources", drop_without_a_word),
        ("origins", never_begin_anew),
        ("high-water", begin_anew_and_know),
        ("second-opinion", overlook_what_is_in_flight),
        ("wild-sources", go_by_the_last_time),
        ("impatient-sources", claim_what_was_skipped),
        ("impatient-sources", trust_sources_that_miss_records),
        ("sources-without-room", forget_without_a_word),
    ],
)
def test_a_broken_rule_is_seen(
    name: str, breaking: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way of breaking the code does harm that the oracle names."""
    breaking(monkeypatch)
    first = _FIRST_CAUGHT.get(breaking.__name__, 0)
    assert any(Life(WORLDS[name], seed).run() != "ok" for seed in range(first, first + _CATCHING))
