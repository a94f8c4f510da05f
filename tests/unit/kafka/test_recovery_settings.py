"""The settings of recovery.

Values that are refused when they are given, and those that have to wait for a partition.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dedup_sdk import ConfigurationError, Recovery


def test_without_settings_it_waits() -> None:
    """No snapshot, no word for others, no timeout, no message without a disk."""
    assert Recovery() == Recovery(snapshot=None, history=None, timeout=None, on_full_disk="pause")
    assert Recovery().snapshot == ()


def test_one_snapshot_or_several(tmp_path: Path) -> None:
    """Folders and URLs, as text or paths, also from an iterator, which can be read only once."""
    assert Recovery(snapshot=tmp_path).snapshot == (str(tmp_path),)
    given = iter([str(tmp_path), "memory://bucket/snapshots"])
    assert Recovery(snapshot=given).snapshot == (str(tmp_path), "memory://bucket/snapshots")


def test_a_folder_that_is_missing_is_no_mistake(tmp_path: Path) -> None:
    """The backfill may not have made it yet; nobody needs it before a store is missing."""
    assert Recovery(snapshot=tmp_path / "later").snapshot == (str(tmp_path / "later"),)


def test_a_file_is_refused(tmp_path: Path) -> None:
    """Such as the manifest in place of its folder, also among others."""
    file = tmp_path / "manifest.json"
    file.touch()
    for given in (file, str(file), [tmp_path, file]):
        with pytest.raises(
            ConfigurationError,
            match=r"^Recovery\(\.\.\.\): snapshot='.*/manifest\.json' is not a folder; give the folder that",
        ):
            Recovery(snapshot=given)


def test_a_path_that_no_folder_can_have_is_refused() -> None:
    """With the reason."""
    with pytest.raises(
        ConfigurationError, match=r"^Recovery\(\.\.\.\): snapshot='a\\x00b' has a NUL character; give"
    ):
        Recovery(snapshot="a\0b")


@pytest.mark.parametrize(
    "url", [Path("s3://key:hunter2@bucket/snapshots"), "s3:/key:hunter2@bucket/snapshots"]
)
def test_a_url_without_its_slashes_is_refused(url: str | Path) -> None:
    """A `Path` removes one of them, and a folder of that name would be looked for; no secret is shown."""
    with pytest.raises(
        ConfigurationError, match=r"^Recovery\(\.\.\.\): snapshot=s3:/\*\*\* is a URL that lacks a slash"
    ) as caught:
        Recovery(snapshot=url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (
            "nosuch://bucket/snapshots",
            "snapshot='nosuch://bucket/snapshots': fsspec has no driver for 'nosuch'",
        ),
        ("hdfs2://", "fsspec has no driver for 'hdfs2'"),
    ],
)
def test_a_url_without_a_driver_is_refused(url: str, sentence: str) -> None:
    """Before any request."""
    with pytest.raises(ConfigurationError, match=sentence):
        Recovery(snapshot=url)


def test_no_password_is_shown() -> None:
    """A URL may contain one."""
    assert "hunter2" not in repr(Recovery(snapshot="memory://key:hunter2@bucket/snapshots"))
