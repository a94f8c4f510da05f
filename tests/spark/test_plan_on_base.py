"""The part of a partition taken from a base, and the offsets to read on top of it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dedup_sdk._marks import Known
from dedup_sdk._store.manifest import Gap, Manifest, PartitionManifest, SortedFile
from dedup_sdk._store.snapshot_source import RemoteFiles
from dedup_sdk._window import Window
from spark_backfill.base import Base, open_base, resumable
from spark_backfill.base_reader import BaseReader
from spark_backfill.errors import BackfillError
from spark_backfill.history_plan import archived_history
from spark_backfill.offset_range import NOTHING_KNOWN_MS, OffsetRange, expire
from spark_backfill.range_plan import Archived, Horizons, LogPart, check_gaps, on_base, plan_on_base
from spark_backfill.slots import Slot, SlotPlan
from tests.support.naive_fold import Row, digest_of
from tests.support.rebuilding import rebuild

if TYPE_CHECKING:
    from pathlib import Path

DAY = Window(days=1)
COUNT = Window(count=9)


def entry(**given: Any) -> PartitionManifest:
    """A base of offsets 10 to 50, known from 700 ms on."""
    usual = PartitionManifest(partition=3, low=10, high=50, known=Known(since_ms=700, newest_ms=900), marks=0)
    known = {name: given.pop(name) for name in list(given) if name in Known.__dataclass_fields__}
    return replace(usual, known=replace(usual.known, **known), **given)


def above(**given: Any) -> OffsetRange:
    """The plan from the base's cut on."""
    usual: dict[str, Any] = {"partition": 3, "low": 50, "begin": 50, "high": 80, "complete": True}
    return OffsetRange(**{**usual, **given})


def test_only_what_came_after_is_read() -> None:
    """Reading begins at the base's cut, the history where it began, and as much is known as the base knew."""
    offset_range = on_base(above(keep_from_ms=600), entry(), low=10, counted=False)
    assert (offset_range.low, offset_range.begin, offset_range.high, offset_range.offsets) == (10, 50, 80, 30)
    assert offset_range.since_ms(first_ms=1_000, forgotten_ms=None) == 700
    assert offset_range.since_ms(first_ms=1_000, forgotten_ms=800) == 801
    whole = on_base(above(), entry(since_ms=None), low=10, counted=False)
    assert whole.since_ms(first_ms=1_000, forgotten_ms=None) is None


def test_after_a_base_that_knows_nothing_the_first_record_is_the_first_known() -> None:
    """A base that was made when the log was gone does not keep later snapshots from knowing."""
    offset_range = on_base(above(), entry(since_ms=NOTHING_KNOWN_MS), low=10, counted=False)
    assert offset_range.since_ms(first_ms=1_000, forgotten_ms=None) == 1_000
    assert offset_range.since_ms(first_ms=None, forgotten_ms=None) == NOTHING_KNOWN_MS


def test_a_history_that_begins_later_takes_less() -> None:
    """Marks below the group's own beginning are left out, and so are gaps there."""
    gaps = (Gap(begin=12, end=20), Gap(begin=28, end=40))
    offset_range = on_base(above(), entry(gaps=gaps), low=30, counted=False)
    assert offset_range.base is not None
    assert (offset_range.low, offset_range.base.floor, offset_range.base.gaps) == (30, 30, ((30, 40),))
    assert resumable(entry(), low=50, high=80, vouched=False, window=DAY) is None


def test_a_window_that_begins_behind_the_base_needs_none_of_it() -> None:
    """Where all of the base has expired only the window is read, as without it."""
    later = above(begin=60, complete=False, keep_from_ms=5_000, known_from_ms=5_000)
    offset_range = on_base(later, entry(), low=10, counted=False)
    assert (offset_range.base, offset_range.low, offset_range.begin) == (None, 10, 60)
    assert offset_range.since_ms(first_ms=6_000, forgotten_ms=None) == 5_000


def test_old_records_behind_the_cut_do_not_cost_the_base() -> None:
    """The first record that the window reaches lies behind the cut, and so do marks of the base.

    Timestamps are in no order.
    """
    late = above(begin=60, complete=False, keep_from_ms=800, known_from_ms=800)
    offset_range = on_base(late, entry(), low=10, counted=False)
    assert offset_range.base is not None
    assert (offset_range.low, offset_range.begin, offset_range.base.floor) == (10, 60, 10)
    assert offset_range.since_ms(first_ms=6_000, forgotten_ms=None) == 800
    assert on_base(late, entry(since_ms=850), low=10, counted=False).since_ms(6_000, None) == 850
    assert on_base(late, entry(since_ms=None), low=10, counted=False).since_ms(6_000, None) == 800
    unknown = on_base(late, entry(since_ms=NOTHING_KNOWN_MS), low=10, counted=False)
    assert unknown.since_ms(6_000, None) == 6_000
    assert on_base(late, entry(), low=10, counted=True).base is None


def test_an_archive_alone_is_read_from_the_cut_on() -> None:
    """Also records too old for the window: an ID's last record may be among it, and its mark in the base be newer."""
    manifest = Manifest(
        cluster="c", topic="t", topic_id="", id_spec="key", digest="d", isolation="read_committed", window="100n",
        group=None, vouched=True, created_ms=0, partitions=(entry(),),
    )  # fmt: skip
    base = cast("Base", SimpleNamespace(manifest=manifest))
    # The first three records behind the cut are old.
    found = {3: Archived(3, 50, 80, 30, first_ms=5, last_ms=1_000, first_kept=53, oldest_ms=5)}
    (offset_range,) = archived_history(
        lambda _cuts, _horizons: found,
        Window(milliseconds=320),
        cluster="c",
        topic="t",
        topic_id="",
        now_ms=2_000,
        base=base,
    ).offset_ranges
    assert offset_range.base is not None
    assert (offset_range.keep_from_ms, offset_range.archived, offset_range.begin) == (660, (50, 80), 50)


def test_an_archive_that_overlaps_the_base_has_no_hole_at_the_cut() -> None:
    """Its writer wrote all records between two of them.

    An archive that begins behind the cut may lack some, and says so.
    """
    window, limits = Window(milliseconds=10_000), Horizons(keep_from_ms=500, exact_ms=600)
    log = LogPart(50, 80, 80, complete=True)
    for begin, gaps in ((49, ()), (50, ()), (51, ((50, 51),))):
        archived = Archived(3, begin, 80, 20, first_ms=900, last_ms=1_000, first_kept=begin)
        offset_range = plan_on_base(entry(), log, archived, low=10, window=window, limits=limits)
        assert (offset_range.base is not None, offset_range.gaps) == (True, gaps)
        assert offset_range.archived == (max(begin, 50), 80)
        if not gaps:
            assert offset_range.since_ms(first_ms=1_000, forgotten_ms=None) == 700
            check_gaps("orders", [offset_range], allowed=False)
            continue
        with pytest.raises(
            BackfillError,
            match=r"lacks offsets 50 to 50: .*give the archive's files from before the cut, too$",
        ):
            check_gaps("orders", [offset_range], allowed=False)


def test_a_base_that_knows_less_than_the_window_reaches_says_so() -> None:
    """It has no mark of use, and may lack some: its missing marks are not taken for known."""
    later = above(begin=60, complete=False, keep_from_ms=5_000, known_from_ms=5_000)
    offset_range = on_base(later, entry(since_ms=5_500), low=10, counted=False)
    assert offset_range.since_ms(first_ms=5_200, forgotten_ms=None) == 5_500


def test_behind_a_gap_nothing_is_known_before_the_first_record() -> None:
    """The base's marks stay, but an ID may have come since; a window by count begins anew."""
    holed = above(begin=60, complete=False, gaps=((50, 60),))
    offset_range = on_base(holed, entry(), low=10, counted=False)
    assert offset_range.base is not None
    assert offset_range.since_ms(first_ms=1_000, forgotten_ms=None) == 1_000
    assert offset_range.since_ms(first_ms=650, forgotten_ms=None) == 700
    assert on_base(holed, entry(), low=10, counted=True).base is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"high": 49}, "the base reaches offset 50, and the history ends at 49: the group was rewound"),
        ({"low": 9}, "the base begins at offset 10, and the history at 9: rebuild in full"),
        ({"low": 11, "window": COUNT}, "at offset 10, and the history at 11: a window by count"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(given: dict[str, Any], says: str) -> None:
    """A base that lies elsewhere than the history is named with both offsets."""
    usual: dict[str, Any] = {"low": 10, "high": 80, "vouched": False, "window": DAY}
    assert resumable(entry(), **usual) == entry()
    with pytest.raises(BackfillError, match=says) as caught:
        resumable(entry(), **{**usual, **given})
    assert "\n" not in str(caught.value)
    assert "rebuild in full: once without --base" in str(caught.value)


def test_a_vouched_history_begins_with_the_base() -> None:
    """The base still has the records that the log has lost since, and whoever vouches does so for that, too."""
    assert resumable(entry(), low=60, high=80, vouched=True, window=COUNT) == entry()


def test_a_time_to_forget_before_only_raises_the_horizon() -> None:
    """Marks last seen before it are left out, and the window's own horizon stays where it is later."""
    assert [each.keep_from_ms for each in expire([above(keep_from_ms=600), above()], 650)] == [650, 650]
    assert [each.keep_from_ms for each in expire([above(keep_from_ms=600)], None)] == [600]
    assert [each.keep_from_ms for each in expire([above(keep_from_ms=900)], 650)] == [900]


def test_tasks_fetch_files_of_a_base_and_not_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a URL the driver reads it once, and sends the tasks what they need of it.

    They fetch the files to the disks where Spark shuffles.
    """
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "disk"))
    fetch = RemoteFiles.fetch_file
    fetched: list[Path] = []

    def seen(files: RemoteFiles, partition: int, file: SortedFile, folder: Path) -> None:
        fetched.append(folder)
        fetch(files, partition, file, folder)

    monkeypatch.setattr(RemoteFiles, "fetch_file", seen)
    rows = [Row(0, offset, 1_000 + offset, digest_of(offset)) for offset in range(9)]
    rebuild(rows, DAY, tmp_path / "bases" / "yesterday", high=9)
    base = open_base((tmp_path / "bases").as_uri())
    reader = BaseReader(files=base.files, tasks=(), plan=SlotPlan((Slot(0, 0, 1),)), floors={0: 2})
    (tmp_path / "bases" / "yesterday" / "manifest.json").unlink()
    on_a_worker = pickle.loads(pickle.dumps(reader))  # noqa: S301 (our own)
    (file,) = base.manifest.partitions[0].files
    forgotten, block = on_a_worker.blocks(0, file)
    assert forgotten.forgotten_ms == 1_001
    assert sorted(block.marks.offsets.tolist()) == list(range(2, 9))
    assert [tmp_path / "disk" in folder.parents for folder in fetched] == [True]
