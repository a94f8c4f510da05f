"""What messages say of a snapshot's URL: enough to know which, and no secret."""

from __future__ import annotations

import pytest

from dedup_sdk import ConfigurationError, SnapshotError
from dedup_sdk.store.snapshot_source import find_remote, redacted_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me:hunter2@host:1/path?token=hunter2#hunter2", "https://host:1/path"),
        ("s3://bucket/folder@2/snapshot", "s3://bucket/folder@2/snapshot"),
        ("file:///var/snapshot", "file:///var/snapshot"),
        ("zip://a::https://me:hunter2@host/path?sig=hunter2", "zip://a::https://host/path"),
        ("simplecache::s3://key:hunter2@bucket/path", "simplecache::s3://bucket/path"),
        ("https://me:hunter2/x@host/path", "https://***"),
        ("https://me:hun::ter2@host/path", "https://***::host/path"),
        ("http://[::1", "http://***::1"),
        ("no_scheme://me:hunter2@host/path", "no_scheme://host/path"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, expected: str) -> None:
    """Each part of a chain loses name, password and query; what cannot be taken apart is masked."""
    assert redacted_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "file:///none?token=hunter2",
        "memory://me:hunter2@none",
        "memory://me:hunter%32@none",
        "zip://a::file:///none?hunter2",
        "http://me:hunter2@[::1",
        "no-such-driver::s3://me:hunter2@bucket/path",
        "me:hunter2@no-such-driver://bucket",
    ],
)
def test_what_a_driver_says_has_no_secret_of_the_url(url: str) -> None:
    """A snapshot that cannot be looked at is one line, without what its URL carries, whatever the driver repeats of it."""
    with pytest.raises((SnapshotError, ConfigurationError)) as caught:
        find_remote(url)

    line = str(caught.value)
    assert "hunter" not in line
    assert "\n" not in line
