from __future__ import annotations

from typing import TYPE_CHECKING

from dedup_sdk._demo.oracle import IMPLICIT_BATCH_RECORDS, Handled, judge, read_handled

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = {"a": 2, "b": 1, "c": 1}


def handled(*ids: str, partition: int = 0, begin: int = 0) -> list[Handled]:
    """Calls for these IDs at consecutive offsets of one partition."""
    return [Handled(partition, begin + index, dedup_id) for index, dedup_id in enumerate(ids)]


def test_each_id_once_is_all_good() -> None:
    """When each ID was handled once, nothing is lost or doubled, and the duplicates are those of the topic."""
    judgement = judge(TOPIC, [handled("a", "b"), handled("c", partition=1)])
    assert (judgement.records, judgement.distinct_ids, judgement.duplicates_in_topic) == (4, 3, 1)
    assert (judgement.handled, judgement.lost, judgement.doubled, judgement.unexplained) == (3, 0, 0, 0)


def test_an_id_nobody_handled_is_lost() -> None:
    """IDs of the topic that occur in no run's file are counted as lost."""
    assert judge(TOPIC, [handled("a")]).lost == 2


def test_a_double_without_a_kill_is_unexplained() -> None:
    """Without a killed run nothing excuses a second call: the bound is zero."""
    judgement = judge(TOPIC, [handled("a", "b", "c", "a")])
    assert (judgement.doubled, judgement.doubled_bound, judgement.unexplained) == (1, 0, 1)


def test_the_kill_excuses_only_what_was_not_committed() -> None:
    """A second call is excused once, and only for messages the killed run handled at or above the commit."""
    killed = handled("a", "b")
    judgement = judge(TOPIC, [killed, handled("a", "b", "c")], killed=killed, committed={0: 1})
    assert (judgement.doubled, judgement.doubled_bound, judgement.unexplained) == (2, 1, 1)
    twice = judge(TOPIC, [killed, handled("b", "b", "c")], killed=killed, committed={0: 1})
    assert (twice.doubled, twice.unexplained) == (2, 1)


def test_a_partition_without_a_commit_is_wholly_at_risk() -> None:
    """Where the group had committed nothing, all that the killed run handled there may come again."""
    killed = handled("a", "b", partition=3)
    assert judge(TOPIC, [killed], killed=killed, committed={0: 10}).doubled_bound == 2


def test_the_bound_is_never_more_than_one_implicit_batch() -> None:
    """However long ago the last commit was, the store on the same disk leaves at most one batch in doubt."""
    killed = handled(*(str(number) for number in range(5_000)))
    assert judge({}, [killed], killed=killed, committed={0: 0}).doubled_bound == IMPLICIT_BATCH_RECORDS


def test_files_are_read_back_without_a_torn_last_line(tmp_path: Path) -> None:
    """Every finished line is a call with its coordinates, IDs may hold blanks, and an unfinished line is none."""
    file = tmp_path / "worker-1.handled"
    file.write_text("2 17 id with blanks\n0 5 x\n1 99 tor", encoding="utf-8")
    assert read_handled(file) == [Handled(2, 17, "id with blanks"), Handled(0, 5, "x")]
