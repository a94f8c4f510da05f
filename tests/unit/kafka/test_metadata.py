from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk.kafka.metadata import CommitMetadata, parse_metadata
from dedup_sdk.rule_fingerprint import log_name

ERAS = st.text(alphabet="0123456789abcdefghijklmnopqrstuvwxyz", max_size=32)


@given(
    st.integers(0, 2**63 - 1), ERAS, st.booleans(), st.none() | st.integers(0, 10**9 - 1), st.text(),
    st.text(), st.none() | st.integers(0, 2**63 - 1), st.just("") | st.text("0123456789abcdef", min_size=8, max_size=8),
)  # fmt: skip
def test_what_is_written_is_read(
    low: int,
    era: str,
    complete: bool,  # noqa: FBT001
    epoch: int | None,
    cluster: str,
    topic_id: str,
    aborted: int | None,
    units: str,
) -> None:
    """Every value comes back from the text beside an offset, which is short and plain ASCII."""
    metadata = CommitMetadata(
        low=low, era=era, complete=complete, epoch=epoch, log=log_name(cluster, topic_id), aborted=aborted,
        units=units,
    )  # fmt: skip

    assert parse_metadata(str(metadata)) == metadata
    assert str(metadata).isascii()
    assert len(str(metadata)) < 165


def test_the_form_does_not_change_unseen() -> None:
    """Other versions and other hosts read it: a change of the form is a new version."""
    assert (
        str(CommitMetadata(low=1200, era="5f0c9a", complete=True)) == "dedup/1 low=1200 era=5f0c9a complete=1"
    )
    assert str(CommitMetadata(low=0)) == "dedup/1 low=0 era= complete=0"
    assert str(CommitMetadata(low=0, epoch=0)) == "dedup/1 low=0 era= complete=0 epoch=0"
    assert str(CommitMetadata(low=0, log="3f9a01bc")) == "dedup/1 low=0 era= complete=0 log=3f9a01bc"
    assert str(CommitMetadata(low=0, by="5d0c77e1")) == "dedup/1 low=0 era= complete=0 by=5d0c77e1"
    assert str(CommitMetadata(low=0, aborted=12)) == "dedup/1 low=0 era= complete=0 aborted=12"
    assert str(CommitMetadata(low=0, units="90c2e5d1")) == "dedup/1 low=0 era= complete=0 units=90c2e5d1"
    assert log_name("kraft-1", "topic-1") == "286eb19735e4bcb8"
    assert log_name("kraft-1", "") == "286eb197"


def test_a_text_is_of_one_log() -> None:
    """Another cluster or another topic ID makes another name; where either side does not say, a text is believed as ever."""
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


def test_a_history_that_begins_beyond_its_commit_is_not_ours() -> None:
    """The offset was translated and the text was not: nobody has handled what would lie in between."""
    text = "dedup/1 low=4000 era= complete=1"
    assert parse_metadata(text, committed=3_999) is None
    assert parse_metadata(text, committed=4_000) == CommitMetadata(low=4_000, complete=True)


@pytest.mark.parametrize(
    "text",
    [
        None, "", "dedup/2 low=1 era= complete=1", "dedup/1 low=-1 era= complete=1", "dedup/1 low=1 era= complete=2",
        "dedup/1 low=1 era= complete=1\n", " dedup/1 low=1 era= complete=1", "dedup/1 low=1 era= complete=1 more=2", "dedup/1 low=1 era= complete=1 epoch=-1",
        "dedup/1 low=1 era= complete=1 buried=7",
        f"dedup/1 low=1 era= complete=1 aborted={2**63}",
        f"dedup/1 low={2**63} era= complete=1", "dedup/1 low=99999999999999999999 era= complete=1",
        "dedup/1 low=\u0661 era= complete=1", "dedup/1 low=1 era=UPPER complete=1", f"dedup/1 low=1 era={'a' * 33} complete=1",
        "dedup/1 low= era= complete=1", "dedup/1 low=1 era= complete=1 log=", "dedup/1 low=1 era= complete=1 log=3F9A01BC", "{}", "NULL", "\x00", "dedup/1 low=1 era=../.. complete=1",
    ],
)  # fmt: skip
def test_what_is_not_ours_is_nothing(text: str | None) -> None:
    """A text by another client, by a newer version, or by somebody who means harm says nothing of a history."""
    assert parse_metadata(text) is None


@given(st.text())
def test_any_text_is_read_or_nothing(text: str) -> None:
    """No text raises, and none is read that would not be written so."""
    metadata = parse_metadata(text)

    assert metadata is None or text.startswith("dedup/1 low=")
