"""What several groups read together: a range a partition, that holds all of theirs, and nothing where none has anything."""

from __future__ import annotations

from collections.abc import Sequence

from spark_backfill.hull import hull, in_archive, in_log, offsets_of, read_once
from spark_backfill.stretch import Bounds, Stretch


def stretch(partition: int, begin: int, high: int, archived: tuple[int, int] | None = None) -> Stretch:
    """Offsets that a group reads, those of an archive first."""
    log_from = None if archived is None else archived[1]
    return Stretch(
        partition=partition,
        low=begin,
        begin=begin,
        high=high,
        complete=True,
        archived=archived,
        log_from=log_from,
    )


def test_a_range_holds_those_of_all_groups() -> None:
    """From the lowest begin to the highest end; groups that read nothing of a partition move neither."""
    one = [stretch(0, 5, 9), stretch(1, 0, 3), stretch(2, 4, 4)]
    other = [stretch(0, 7, 20), stretch(1, 50, 50)]
    found = hull([in_log(one), in_log(other)])
    assert found == hull([in_log(other), in_log(one)])
    assert [(each.partition, each.begin, each.high) for each in found] == [(0, 5, 20), (1, 0, 3)]
    assert offsets_of(found) == 18
    assert hull([in_log([stretch(0, 4, 4)])]) == ()


def test_archive_and_topic_are_apart() -> None:
    """Each has a range of its own: where one group leaves the archive another may still be in it."""
    groups = [[stretch(0, 2, 30, (2, 10))], [stretch(0, 5, 40, (5, 12))], [stretch(0, 20, 25)]]
    (log,) = hull([in_log(each) for each in groups])
    assert (log.begin, log.high) == (10, 40)
    (archive,) = hull([in_archive(each) for each in groups])
    assert archive.in_archive() == (2, 12)


class Noted(tuple[object, ...]):
    """What each group takes of a source, as the reader is told."""

    __slots__ = ()

    def over(self, groups: Sequence[Bounds]) -> Noted:
        """Note the bounds."""
        return Noted(groups)


def test_each_source_is_read_once_for_all_groups() -> None:
    """With the range of all, and what each takes of it; what nobody takes anything of is not read."""

    def read(stretches: Sequence[Stretch], shared: Noted) -> tuple[int, int, Noted]:
        (one,) = stretches
        return one.begin, one.high, shared

    both = [[stretch(0, 2, 30, (2, 10))], [stretch(0, 20, 25)]]
    of_log = (10, 30, Noted([{0: (10, 30)}, {0: (20, 25)}]))
    of_archive = (2, 10, Noted([{0: (2, 10)}, {}]))
    assert read_once(both, Noted(), log=read, archive=read) == [of_log, of_archive]
    assert read_once(both, Noted(), log=read, archive=None) == [of_log]
    assert read_once([[stretch(0, 2, 2)]], Noted(), log=read, archive=read) == []
