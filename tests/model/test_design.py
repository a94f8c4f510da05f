"""The design survives every history, and the oracle sees when a rule of it is broken."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.model.design import DesignHost, Rules
from tests.model.history import FORGETTING, History
from tests.model.host import WINDOW_MS

BROKEN = [
    Rules(commit_the_position=True),
    Rules(trust_a_snapshot_as_completed=True),
    Rules(snapshot_beyond_the_commit=True),
    Rules(snapshot_beyond_the_commit=True, equal_offset_is_redelivered=True),
    Rules(mark_before_completion=True, equal_offset_is_redelivered=True),
    Rules(a_dead_letter_leaves_no_mark=True),
    Rules(release_promotes_a_twin=True),
    Rules(duplicates_do_not_refresh=True),
    Rules(low_never_rises=True),
    Rules(metadata_is_optional=True),
    Rules(a_text_is_not_bound_to_its_offset=True),
    Rules(a_text_is_not_bound_to_its_rule=True),
    Rules(nothing_above_the_commit_travels=True),
    Rules(told_offsets_leave_no_mark=True),
    Rules(told_offsets_are_done_at_once=True),
    Rules(told_offsets_need_no_witness=True),
    Rules(a_store_needs_no_witness=True),
    Rules(marks_are_not_asked_for_a_contradiction=True),
    Rules(a_void_text_keeps_the_era=True),
    Rules(marks_outlive_every_era=True),
]

BROKEN_BY_CLOCKS = [
    Rules(an_age_ends_at_the_clock=True),
    Rules(an_age_ends_at_the_newest_record=True),
    Rules(a_fold_reaches_back_from_the_last_record=True),
]
_AHEAD_MS = 3 * WINDOW_MS

_FIRST = {"told_offsets_need_no_witness": 1_400, "marks_are_not_asked_for_a_contradiction": 330}
"""Where to begin: some histories are rare."""


def _name(rules: Rules) -> str:
    return "+".join(name for name in Rules.__slots__ if getattr(rules, name))


def _outcome(seed: int, rules: Rules, ahead_ms: int = 0) -> str:
    return History(seed, lambda: DesignHost(rules), rules, ahead_ms=ahead_ms).run()


def test_the_design_neither_loses_nor_leaks_nor_doubles() -> None:
    """Followed to the letter, the design survives a thousand random histories."""
    assert Counter(_outcome(seed, Rules()) for seed in range(1000)) == {"ok": 1000}


@pytest.mark.parametrize("rules", BROKEN, ids=_name)
def test_a_broken_rule_is_caught(rules: Rules) -> None:
    """Each way of breaking the design does harm that the oracle sees."""
    first = _FIRST.get(_name(rules), 0)
    assert any(_outcome(seed, rules) != "ok" for seed in range(first, first + 3000))


def test_clocks_that_are_ahead_cost_the_design_nothing() -> None:
    """Ages are measured between timestamps, so that a verdict follows from the log alone, whoever asks, and when."""
    assert Counter(_outcome(seed, Rules(), _AHEAD_MS) for seed in range(1000)) == {"ok": 1000}


@pytest.mark.parametrize("rules", BROKEN_BY_CLOCKS, ids=_name)
def test_another_end_of_an_age_is_caught(rules: Rules) -> None:
    """An age that ends at the clock, or at the newest record, and a fold that believes a time ahead, do harm."""
    outcomes = Counter(_outcome(seed, rules, _AHEAD_MS) for seed in range(400))
    assert outcomes.total() > outcomes["ok"]


def _outcome_without_commits(seed: int, rules: Rules) -> str:
    return History(seed, lambda: DesignHost(rules), rules, tools=FORGETTING, names="ABC").run()


def test_commits_that_are_gone_after_a_set_back_cost_the_design_nothing() -> None:
    """Each of three hosts may go on from its own store, whichever took part in the set-back."""
    assert Counter(_outcome_without_commits(seed, Rules()) for seed in range(1000)) == {"ok": 1000}


def test_a_store_that_goes_on_in_an_old_era_is_caught() -> None:
    """Its commits would vouch for what another host completed before the group was set back."""
    rules = Rules(a_resumption_keeps_the_era=True)
    assert any(_outcome_without_commits(seed, rules) == "lost" for seed in range(150, 400))


def _outcome_after_restores(seed: int, rules: Rules) -> str:
    return History(
        seed,
        lambda: DesignHost(rules),
        rules,
        tools=("restore",),
        names="ABC",
        operating=0.8,
        names_recur=False,
    ).run()


def test_a_log_that_was_replaced_costs_the_design_nothing() -> None:
    """Whichever of three hosts goes on in the new log first, and however far, before another one has the partition."""
    assert Counter(_outcome_after_restores(seed, Rules()) for seed in range(1000)) == {"ok": 1000}


def test_a_store_that_is_not_compared_with_the_log_below_the_commit_is_caught() -> None:
    """It counts records as completed that another host handled in their places, and has no marks of these."""
    rules = Rules(a_store_is_compared_beyond_the_commit_alone=True)
    assert any(_outcome_after_restores(seed, rules) == "leaked" for seed in range(200, 400))
