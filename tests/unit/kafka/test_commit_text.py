from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._commit_text import (
    MOST_CHARACTERS,
    CommitMetadata,
    CompletedAbove,
    InvalidReason,
    decode,
    done_part,
    fitting,
    log_name,
    parse_metadata,
    rule_named_in,
    sealed,
    unsealed,
    why_void,
)
from dedup_sdk._core.ranges import Range, merged
from dedup_sdk._marks import Witness

ERAS = st.text(alphabet="0123456789abcdefghijklmnopqrstuvwxyz", max_size=32)
RULE = "90c2e5d1aabb0c4d"
WITNESS = Witness(1309, 1_700_000_000_000, "5d0c77e15d0c77e1")


@st.composite
def completed_above(draw: st.DrawFn, at: int) -> CompletedAbove | None:
    """Ranges at or above an offset."""
    lengths = draw(st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 2**40)), max_size=20))
    ranges: list[Range] = []
    position = at
    for gap, length in lengths:
        ranges.append((position + gap, position + gap + length))
        position = ranges[-1][1]
    if not ranges or position >= 2**63:
        return None
    timestamp_ms = draw(st.integers(-1, 2**62))
    return CompletedAbove(
        tuple(ranges), Witness.of(position - 1, timestamp_ms, draw(st.none() | st.binary(max_size=20)))
    )


@given(
    st.data(), st.integers(0, 2**63 - 1), ERAS, st.booleans(), st.none() | st.integers(0, 10**9 - 1), st.text(),
    st.text(),
)  # fmt: skip
def test_what_is_written_is_read(
    data: st.DataObject,
    at: int,
    era: str,
    complete: bool,  # noqa: FBT001
    epoch: int | None,
    cluster: str,
    topic_id: str,
) -> None:
    """Every value comes back from the text beside its offset, and from none beside another one."""
    metadata = CommitMetadata(
        low=data.draw(st.integers(0, at)), era=era, complete=complete, epoch=epoch, log=log_name(cluster, topic_id),
        rule=RULE,
        done=data.draw(completed_above(at)),
    )  # fmt: skip
    text = metadata.text(at)

    assert parse_metadata(text, committed=at) == metadata
    assert parse_metadata(text, committed=at + 1) is None
    assert parse_metadata(text, committed=at - 1) is None
    assert text.isascii()
    assert len(replace(metadata, done=None).text(at)) < 200
    assert len(sealed(text, "g", "t", 0)) == MOST_CHARACTERS - metadata.room(at) - (
        len(" done=") if metadata.done is None else 0
    ) + len(done_part(text))


def test_the_form_does_not_change_unseen() -> None:
    """Other versions and other hosts read it: a change of the form is a new version."""
    log = log_name("kraft-1", "topic-1")
    assert log == "286eb19735e4bcb8"
    assert log_name("kraft-1", "") == "286eb197"
    metadata = CommitMetadata(
        low=1200, era="5f0c9a", complete=True, epoch=7, log=log, rule=RULE,
        done=CompletedAbove(((1302, 1303), (1305, 1310)), WITNESS)
    )  # fmt: skip
    head = "dedup/2 at=1300 fingerprint=286eb19735e4bcb8.90c2e5d1aabb0c4d low=1200 complete=1 era=5f0c9a epoch=7 "
    assert metadata.text(1300).startswith(head)
    # The same lengths may be compressed otherwise by another library.
    told = f"{head}done=eNpjYmRiBQAAGAAL.1700000000000.5d0c77e15d0c77e1"
    assert parse_metadata(told, committed=1300) == metadata
    assert (
        CommitMetadata(low=0, rule=RULE).text(0)
        == "dedup/2 at=0 fingerprint=.90c2e5d1aabb0c4d low=0 complete=0 era="
    )


def test_a_text_is_of_one_log() -> None:
    """Another cluster or another topic ID makes another name.

    Where either side does not say, a text is believed as ever.
    """
    here, there, anew = log_name("one", "t1"), log_name("two", "t1"), log_name("one", "t2")
    assert len({here, there, anew, ""}) == 4
    metadata = CommitMetadata(low=0, log=here)
    assert [metadata.is_of(name) for name in (here, there, anew, "")] == [True, False, False, True]
    assert CommitMetadata(low=0).is_of(there)
    assert log_name("", "t1") == log_name("unnamed", "t1") == ""
    nameless = log_name("one", "")
    assert [metadata.is_of(nameless), CommitMetadata(low=0, log=nameless).is_of(anew)] == [True, True]
    assert not metadata.is_of(log_name("two", ""))


def test_a_text_tells_a_topic_of_the_same_cluster_from_a_copied_group() -> None:
    """The one had the name before, and its offsets are none of this log; the other's were translated."""
    metadata = CommitMetadata(low=0, log=log_name("one", "t1"))
    names = [log_name("one", "t2"), log_name("one", "t1"), log_name("two", "t2"), log_name("one", ""), ""]
    assert [metadata.is_of_one_before(name) for name in names] == [True, False, False, False, False]
    assert not CommitMetadata(low=0).is_of_one_before(log_name("one", "t2"))


PLAIN = f"dedup/2 at=9 fingerprint=.{RULE} low=1 complete=1 era="


@pytest.mark.parametrize(
    "text",
    [
        None, "", "dedup/1 low=1 era= complete=1", PLAIN + "\n", " " + PLAIN, PLAIN + " more=2", PLAIN + " epoch=-1",
        PLAIN.replace("low=1", "low=-1"), PLAIN.replace("low=1", "low=10"), PLAIN.replace("complete=1", "complete=2"),
        PLAIN.replace("at=9", "at=09 "), PLAIN.replace("at=9 ", ""), PLAIN.replace(RULE, RULE[:-1]),
        PLAIN.replace(RULE, RULE.upper()),
        PLAIN.replace("fingerprint=.", "fingerprint=deadbee."), PLAIN.replace("low=1", "low=\u0661"),
        PLAIN + "UPPER", PLAIN + "a" * 33,
        PLAIN + "../..", PLAIN + " done=", PLAIN + " done=eNpjYmRmBQAAFQAL",
        PLAIN + " done=eNpjYmRmBQAAFQAL.1.5d0c77e15d0c77e",
        PLAIN + " done=AAAA.1.5d0c77e15d0c77e1", PLAIN + " done=eNoDAAAAAAE.1.5d0c77e15d0c77e1", "{}", "NULL", "\x00",
    ],
)  # fmt: skip
def test_what_is_not_ours_is_nothing(text: str | None) -> None:
    """A text by another client, of another version, or by somebody who means harm says nothing of a history."""
    assert parse_metadata(PLAIN, committed=9) is not None
    assert parse_metadata(text, committed=9) is None


@given(st.text(), st.integers(0, 9))
def test_any_text_is_read_or_nothing(text: str, at: int) -> None:
    """No text raises, and none is read that would not be written so."""
    metadata = parse_metadata(text, committed=at)

    assert metadata is None or text.startswith("dedup/2 at=")


@given(st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=60))
def test_any_ranges_are_read_or_nothing(packed: str) -> None:
    """Bytes that are no ranges raise nothing, and a text that is read is written alike."""
    found = decode(f"{packed}.1.{RULE}", 5)

    assert found is None or decode(found.encode(5), 5) == found


def test_few_bytes_that_stand_for_many_ranges_are_not_believed() -> None:
    """A text of 4,096 characters may unpack to megabytes."""
    many = CompletedAbove(
        tuple((2 * n, 2 * n + 1) for n in range(1, 200_000)), replace(WITNESS, offset=399_998)
    )
    assert decode(many.encode(0), 0) is None


def test_the_nearest_ranges_stay_where_not_all_have_room() -> None:
    """As many as fit, and the last of them is one whose record is known."""
    lengths = Random(5)
    ranges = merged((100 * n, 100 * n + lengths.randrange(1, 99)) for n in range(1, 500))
    known = {end - 1 for at, (_, end) in enumerate(ranges) if at % 3 == 0}

    def witness_of(offset: int) -> Witness | None:
        return Witness.of(offset, 1, None) if offset in known else None

    found = fitting(ranges, 0, 200, witness_of)
    assert found is not None
    assert found.ranges == ranges[: len(found.ranges)]
    assert len(found.encode(0)) <= 200
    assert found.witness is not None
    assert found.witness.offset == found.ranges[-1][1] - 1
    longer = CompletedAbove(
        ranges[: len(found.ranges) + 3], witness_of(ranges[len(found.ranges) + 2][1] - 1) or found.witness
    )
    assert len(longer.encode(0)) > 200
    assert fitting(ranges, 0, 20, witness_of) is None
    assert fitting([], 0, 200, witness_of) is None


def test_fifty_thousand_completions_fit() -> None:
    """With 2,000 unfinished ones at random among them the text is short enough for a broker."""
    count = 52_000
    open_ = set(Random(7).sample(range(count), 2_000))
    at = min(open_)
    ranges = merged((offset, offset + 1) for offset in range(at, count) if offset not in open_)
    metadata = CommitMetadata(low=0, era="5f0c9a", complete=True, epoch=7, log=log_name("c", "t"), rule=RULE)
    found = fitting(ranges, at, metadata.room(at), lambda offset: Witness.of(offset, 1, None))
    assert found is not None
    assert found.ranges == tuple(ranges)
    text = replace(metadata, done=found).text(at)
    assert len(sealed(text, "g", "t", 0)) <= MOST_CHARACTERS
    assert parse_metadata(text, committed=at) == replace(metadata, done=found)


def assert_void(text: str) -> None:
    """Nothing is believed of a text but by which rule the group went."""
    assert parse_metadata(text, committed=9) is None
    assert rule_named_in(text) == RULE


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 2**31 - 1))
def test_a_text_counts_where_it_was_committed(group: str, topic: str, partition: int) -> None:
    """By the same group, in the same partition; a text of another client stays as it is."""
    text = CommitMetadata(low=0, rule=RULE).text(9)
    bound = sealed(text, group, topic, partition)
    assert unsealed(bound, group, topic, partition) == text
    assert sealed(bound, group + "x", topic, partition) == bound
    for other in (
        (group + "x", topic, partition),
        (group, topic + "x", partition),
        (group, topic, partition + 1),
    ):
        assert_void(unsealed(bound, *other))
    assert_void(unsealed(text, group, topic, partition))
    for theirs in ("", "mine", "dedup/1 low=0"):
        assert sealed(theirs, group, topic, partition) == unsealed(theirs, group, topic, partition) == theirs
    assert sealed(None, group, topic, partition) == unsealed(None, group, topic, partition) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, InvalidReason.NO_TEXT), ("", InvalidReason.NO_TEXT), ("mine", InvalidReason.NO_TEXT),
        ("dedup/1 low=1 era= complete=1", InvalidReason.OTHER_FORMAT),
        ("dedup/3 at=5", InvalidReason.OTHER_FORMAT), (CommitMetadata(low=1).text(4), InvalidReason.OTHER_OFFSET),
        (CommitMetadata(low=9).text(5), InvalidReason.UNREADABLE),
        (CommitMetadata(low=1).text(5) + " more=2", InvalidReason.UNREADABLE),
        (unsealed(sealed(CommitMetadata(low=1).text(5), "g", "t", 0), "g", "t", 1), InvalidReason.OTHER_OWNER),
        (unsealed(sealed(CommitMetadata(low=1).text(5), "g", "t", 0), "g", "t", 0), None),
    ],
)  # fmt: skip
def test_a_void_text_says_why(text: str | None, why: InvalidReason | None) -> None:
    """Each is told from the others; a valid text is not void."""
    assert why_void(text, committed=5) is why
    assert (parse_metadata(text, committed=5) is None) == (why is not None)
