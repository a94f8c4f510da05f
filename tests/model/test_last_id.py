"""Compare-with-the-last-one survives every history, and the oracle sees when a step of its rule is broken."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from tests.model.last_id.history import LastIdHistory, MakeHost, MakeRule
from tests.model.last_id.host import Beginning, LastIdHost, Said, Store
from tests.model.last_id.rule import Answer, Ident, LastIdRule, Order, Sent, SourceState, compare
from tests.support.fresh_seeds import histories

SEEDS = 3 * int(os.environ.get("DEDUP_MODEL_SEEDS", "3"))
_CATCHING = 500


def test_no_history_breaks_a_promise(fresh_seed: int) -> None:
    """Nothing is lost; nothing is doubled inside the depth, nor doubted without a reason.

    The rebuilt state is the lived one.
    """
    outcomes = {seed: LastIdHistory(seed).run() for seed in histories(fresh_seed, SEEDS)}
    assert {seed: outcome for seed, outcome in outcomes.items() if outcome != "ok"} == {}


# --- broken variants: of a host ---------------------------------------------------------------------------------------


class CommitsThePosition(LastIdHost):
    """Records read are committed, done or not."""

    @property
    def to_commit(self) -> int:
        """See `LastIdHost`."""
        return max([super().to_commit, *(offset + 1 for offset in self._in_flight)])


class MarksAtAccept(LastIdHost):
    """The mark moves when a record is handed out."""

    def admit(self, offset: int) -> Said | None:
        """See `LastIdHost`."""
        said = super().admit(offset)
        if said is not None:
            self._fold(self.live, self._log[offset])
        return said


class MarksPastGaps(LastIdHost):
    """The mark moves with completion, past uncompleted records."""

    def _complete(self, offset: int, row: Sent | None) -> None:
        if row is not None:
            self._fold(self.live, row)
        super()._complete(offset, row)


class ForgetsTheGapSet(LastIdHost):
    """Only the mark is written down."""

    def write(self) -> None:
        """See `LastIdHost`."""
        super().write()
        assert self.disk is not None
        sources = self.disk.sources
        self.disk.sources = {name: replace(state, kept=state.kept[-1:]) for name, state in sources.items()}


class ForgetsWhatIsAhead(LastIdHost):
    """Of records completed above the watermark only the offsets are written down."""

    def write(self) -> None:
        """See `LastIdHost`."""
        super().write()
        assert self.disk is not None
        self.disk.ahead = dict.fromkeys(self.disk.ahead)


class SkipsTheTail(LastIdHost):
    """Records that another member completed count as known."""

    def _replay(self, store: Store, at: int) -> None:
        store.high = at


class ClaimsWhatIsGone(LastIdHost):
    """A source whose history has left the log in part passes for one that is known."""

    def _move(self, store: Store, offset: int) -> None:
        store.high = offset


class KeepsSourcesWhenSetBack(LastIdHost):
    """A group that is set back is judged by its old sources."""

    def assign(self, beginning: Beginning) -> None:
        """See `LastIdHost`."""
        known = None if self.disk is None else self.disk.sources
        super().assign(beginning)
        self.live.sources = {**self.live.sources, **(known or {})}


class MixesTheSources(LastIdHost):
    """All sources share one mark."""

    def assign(self, beginning: Beginning) -> None:
        """See `LastIdHost`."""
        mixed = [row._replace(source="") for row in beginning.log]
        super().assign(replace(beginning, log=mixed))


# --- broken variants: of the rule -------------------------------------------------------------------------------------


class NotNewerIsADuplicate(LastIdRule):
    """Below the mark nothing is remembered, and all taken for seen."""

    def judge(self, state: SourceState | None, *arguments: object, **named: object) -> Answer:
        """See `LastIdRule`."""
        answer = super().judge(state, *arguments, **named)  # type: ignore[arg-type]
        ident = arguments[0]
        assert isinstance(ident, Ident)
        older = state is not None and compare(ident, state.kept[-1]) is Order.OLDER
        return Answer.DUPLICATE if older else answer


class UncomparableIsADuplicate(LastIdRule):
    """An ID unknown to the order is not delivered."""

    def delivers(self, answer: Answer) -> bool:
        """See `LastIdRule`."""
        return super().delivers(answer) and answer is not Answer.UNCOMPARABLE


class NeverRestarts(LastIdRule):
    """An uncomparable ID leaves the mark where it is."""

    def fold(self, state: SourceState | None, ident: Ident, **named: Any) -> SourceState | None:
        """See `LastIdRule`."""
        unknown = state is not None and compare(ident, state.kept[-1]) is Order.UNCOMPARABLE
        return state if unknown else super().fold(state, ident, **named)


class RestartsAtTheMalformed(LastIdRule):
    """An ID without a place in the order is a mark like any other."""

    def is_well_formed(self, ident: Ident) -> bool:  # noqa: ARG002
        """See `LastIdRule`."""
        return True


class TrustsARestart(LastIdRule):
    """A source that begins anew passes for one of which all is known."""

    def restart(self, ident: Ident, timestamp_ms: int) -> SourceState:
        """See `LastIdRule`."""
        return replace(super().restart(ident, timestamp_ms), known=None)


class TrustsTooEarly(LastIdRule):
    """A source passes for known as soon as its gap set is full."""

    @property
    def enough(self) -> int:
        """See `LastIdRule`."""
        return self.reorder_depth + 1


class KeepsTooFew(LastIdRule):
    """The gap set is smaller than the depth."""

    def fold(self, state: SourceState | None, ident: Ident, **named: Any) -> SourceState | None:
        """See `LastIdRule`."""
        folded = super().fold(state, ident, **named)
        return folded and replace(folded, kept=folded.kept[-max(1, self.reorder_depth) :])


@pytest.mark.parametrize(
    ("harm", "make_host", "make_rule"),
    [
        ("lost", CommitsThePosition, LastIdRule),
        ("lost", MarksAtAccept, LastIdRule),
        ("lost", MarksPastGaps, LastIdRule),
        ("doubted", MarksPastGaps, LastIdRule),
        ("doubled", ForgetsTheGapSet, LastIdRule),
        ("rebuilt otherwise", ForgetsWhatIsAhead, LastIdRule),
        ("doubled", ForgetsWhatIsAhead, LastIdRule),
        ("rebuilt otherwise", SkipsTheTail, LastIdRule),
        ("doubled", ClaimsWhatIsGone, LastIdRule),
        ("lost", KeepsSourcesWhenSetBack, LastIdRule),
        ("lost", MixesTheSources, LastIdRule),
        ("lost", LastIdHost, NotNewerIsADuplicate),
        ("lost", LastIdHost, UncomparableIsADuplicate),
        ("doubted", LastIdHost, NeverRestarts),
        ("doubted", LastIdHost, RestartsAtTheMalformed),
        ("doubled", LastIdHost, TrustsARestart),
        ("doubled", LastIdHost, TrustsTooEarly),
        ("doubled", LastIdHost, KeepsTooFew),
    ],
)
def test_a_broken_step_is_seen(harm: str, make_host: MakeHost, make_rule: MakeRule) -> None:
    """Each way of breaking the rule does the harm that is expected of it."""
    outcomes = (LastIdHistory(seed, make_host, make_rule).run() for seed in range(_CATCHING))
    assert any(outcome.startswith(harm) for outcome in outcomes)
