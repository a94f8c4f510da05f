"""The digests of sources, which are remembered by their names."""

from __future__ import annotations

import pytest

from dedup_sdk import header
from dedup_sdk._core import source_keys as keys_module
from dedup_sdk._core.source_keys import SourceKeys
from dedup_sdk._record import Record
from dedup_sdk.ids import RecordFields


def fields(*names: bytes | None) -> RecordFields:
    """Return records of these sources."""
    return RecordFields(
        [
            Record("t", 0, at, headers=[("id", b"%d" % at), *([] if name is None else [("source", name)])])
            for at, name in enumerate(names)
        ]
    )


def test_sources_that_come_again_have_the_digest_that_their_spec_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether a source is new, known, or known no more."""
    keys = SourceKeys(header("id"), header("source"), "integer")
    spec = header("source")
    most = 50
    monkeypatch.setattr(keys_module, "MOST_SOURCES_KNOWN", most)
    for start in (0, 0, most, 0, 2 * most, most):
        names = [b"producer-%d" % (start + number) for number in range(most)]
        expected = spec.digests(fields(*names)).digests
        assert [key[:16] for key in keys.digests(fields(*names)).digests if key] == expected


def test_a_record_without_a_source_among_known_ones_has_none() -> None:
    """The others keep theirs, and it has its reason."""
    keys = SourceKeys(header("id"), header("source"), "integer")
    keys.digests(fields(b"a", b"b"))
    found = keys.digests(fields(b"a", None, b"x" * 70_000, b"b"))
    assert found.missing == {1: "source-absent", 2: "source-oversized"}
    assert [key and key[16:] for key in found.digests] == [b"0", None, None, b"3"]
    assert keys.digests(fields(b"b")).digests[0] == (found.digests[3] or b"")[:16] + b"0"
