"""The history of a run: its errors are told before anything is read, and how far it reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import pytest

from dedup_sdk._commit_text import CommitMetadata
from spark_backfill import history_plan
from spark_backfill.errors import BackfillError
from spark_backfill.kafka_log import Bounds, Commit, LastRecord
from spark_backfill.options import parse_options
from spark_backfill.range_plan import Archived

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


class _OneLog:
    """A log of two partitions and a record an hour."""

    commits: ClassVar[Mapping[str, int]] = {}
    rule: ClassVar[str] = CommitMetadata(low=0).rule
    topic, cluster = "orders", "c"

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def partitions(self) -> list[int]:
        return [0, 1]

    def topic_id(self) -> str:
        return "t"

    def bounds(self, partitions: Iterable[int]) -> dict[int, Bounds]:
        return dict.fromkeys(partitions, Bounds(10, 100, 100))

    def committed(self, group: str, _: Iterable[int]) -> dict[int, Commit]:
        if group not in self.commits:
            return {}
        end = self.commits[group]
        text = CommitMetadata(low=0, complete=True, rule=self.rule).text(end)
        return {at: Commit(end, text) for at in (0, 1)}

    def last_record(self, _: int, __: int, cut: int) -> LastRecord:
        return LastRecord(cut - 1, NOW_MS + (cut - 100) * HOUR_MS, None)

    def first_offset_at(self, *_: int) -> int:
        return 10

    def first_timestamps_ms(self, *_: int) -> list[int]:
        return [NOW_MS - 90 * HOUR_MS]


class _OneArchive:
    """The records before the log, and how often it was looked through."""

    def __init__(self) -> None:
        self.looked = 0

    def survey(self, *_: object) -> dict[int, Archived]:
        self.looked += 1
        old_ms = NOW_MS - 100 * HOUR_MS
        return {at: Archived(at, 0, 20, 20, old_ms, old_ms, 0, -1, old_ms) for at in (0, 1)}


def test_a_group_without_a_history_ends_the_run_before_the_archive_is_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its line comes at once."""
    monkeypatch.setattr(history_plan, "KafkaLog", _OneLog)
    usual = [
        "--bootstrap",
        "h:1",
        "--topic",
        "orders",
        "--id",
        "key",
        "--window",
        "30d",
        "--output",
        "nowhere",
    ]
    sources = ["--source", "kafka", "--source", "a.parquet", "--archive-isolation", "read_committed"]
    options = parse_options([*usual, *sources, "--group", "b"], print)
    archive: Any = _OneArchive()
    with pytest.raises(
        BackfillError, match=r"^group 'b' has no history in topic 'orders' to fold \(nothing committed\)"
    ):
        history_plan.plan_history(options, archive, None, now_ms=NOW_MS)
    monkeypatch.setattr(_OneLog, "commits", {"b": 101})
    with pytest.raises(BackfillError, match=r"^partition 0: committed offset 101 lies beyond"):
        history_plan.plan_history(options, archive, None, now_ms=NOW_MS)
    assert archive.looked == 0


@pytest.mark.parametrize(
    ("window", "second", "reach_hours"),
    [("2d", "1d", 48), ("1d", "2d", 48), ("1d", "5d", None), ("5d", "1d", None)],
)
def test_the_longer_window_says_what_is_kept_and_what_may_be_gone(
    window: str, second: str, reach_hours: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where comparing has a second opinion.

    Offsets 0 to 9, from before the last 90 hours, are missed by five days alone, whichever of the windows that is.
    """
    monkeypatch.setattr(history_plan, "KafkaLog", _OneLog)
    monkeypatch.setattr(_OneLog, "commits", {"a": 100})
    usual = ["--bootstrap", "h:1", "--topic", "orders", "--group", "a", "--id", "key", "--output", "nowhere"]
    compared = ["--order", "integer", "--window", window, "--otherwise", "key", "--otherwise-window", second]
    asked = parse_options([*usual, *compared], print)
    monkeypatch.setattr(_OneLog, "rule", history_plan.rule_of(asked))
    found = history_plan.plan_history(asked, None, None, now_ms=NOW_MS)
    if reach_hours is None:
        with pytest.raises(BackfillError, match=r"orders\[0\] lacks offsets 0 to 9"):
            history_plan.tell_gaps(found, asked, print)
        return
    history_plan.tell_gaps(found, asked, print)
    # With a sixteenth more, as the consumer keeps them.
    keep_from_ms = NOW_MS - reach_hours * HOUR_MS * 17 // 16
    assert [(each.begin, each.high, each.keep_from_ms) for each in found.offset_ranges] == [
        (10, 100, keep_from_ms)
    ] * 2
