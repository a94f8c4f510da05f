"""A snapshot's URL in messages: enough to know which, and no secret."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dedup_sdk import ConfigurationError, DedupConsumer, DedupError, Lookup, Recovery, RocksStore
from dedup_sdk._cli.app import run
from dedup_sdk._masking import redacted_url
from dedup_sdk._store.backup import restore_snapshot
from dedup_sdk._store.snapshot_copy import publish_snapshot
from dedup_sdk._store.snapshot_source import find_remote
from dedup_sdk.errors import SnapshotError
from tests.support.marks import random_marks, write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECRET_URLS = ["memory://key:hunter2@bucket/today", "memory://bucket/today?X-Amz-Signature=hunter2"]


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
    """Each part of a chain loses name, password and query; a URL that cannot be taken apart is masked."""
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
    """A snapshot that cannot be looked at is one line.

    It is without the secrets of the URL, whatever the driver repeats of it.
    """
    with pytest.raises((SnapshotError, ConfigurationError)) as caught:
        find_remote(url)

    line = str(caught.value)
    assert "hunter" not in line
    assert "\n" not in line


@pytest.fixture
def published(tmp_path: Path) -> Iterator[Path]:
    """Two snapshots in this process' memory, behind each of the URLs with a secret; the folder of one of them."""
    write_snapshot(tmp_path / "snapshot", random_marks(40, 1))
    for url in SECRET_URLS:
        for name in ("a", "b"):
            publish_snapshot(tmp_path / "snapshot", _below(url, name))
    yield tmp_path / "snapshot"
    MemoryFileSystem.store.clear()


def _below(url: str, name: str) -> str:
    place, mark, query = url.partition("?")
    return f"{place}/{name}{mark}{query}"


@pytest.mark.parametrize("url", SECRET_URLS)
def test_what_is_refused_shows_no_secret_of_a_url(published: Path, tmp_path: Path, url: str) -> None:
    """By Python and by the command.

    A snapshot of another group, one of several, one that is there, a place that takes no URL.
    """
    one = _below(url, "a")
    calls: list[Callable[[], Any]] = [
        lambda: restore_snapshot(one, tmp_path / "store", group="other"),
        lambda: publish_snapshot(published, one),
        lambda: RocksStore(url),
        lambda: DedupConsumer(
            {"bootstrap.servers": "b:1", "group.id": "g"},
            dedup=Lookup(id="key", window="7d", persist=False),
            store=tmp_path / "store",
            recovery=Recovery(snapshot=[one, url]),
        ),
    ]
    for call in calls:
        with pytest.raises(DedupError) as caught:
            call()
        assert "hunter2" not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", SECRET_URLS)
def test_the_command_shows_no_secret_of_a_url(
    published: Path,
    tmp_path: Path,
    url: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither on stdout nor on stderr nor in the log, whether it succeeds or fails."""
    caplog.set_level(logging.DEBUG, "dedup_sdk")
    one, store = _below(url, "a"), str(tmp_path / "store")
    statuses = [
        run(["snapshots", *arguments])
        for arguments in (
            ["list", url],
            ["list", url, "--json"],
            ["verify", one],
            ["diff", one, _below(url, "b")],
            ["copy", one, _below(url, "c")],
            ["copy", url, _below(url, "d")],
            ["copy", str(published), one],
            ["prune", url, "--keep", "2"],
            ["prune", url, "--keep", "1", "--json"],
            ["verify", _below(url, "none")],
        )
    ]
    # For the driver a query is part of a path, and no folder of several snapshots ends in one.
    assert statuses == ([0, 0, 0, 0, 0, 1, 1, 0, 0, 1] if "?" not in url else [1, 1, 0, 0, 0, 1, 1, 1, 1, 1])
    assert run(["restore", "--snapshot", url, "--store", store, "--group", "other"]) == 1
    assert run(["restore", "--snapshot", url, "--store", url]) == 2
    assert run(["snapshot", "--store", store, "--output", url]) == 1
    assert run(["stats", "--store", url]) == 2
    told = capsys.readouterr()
    assert "memory://bucket/today" in told.out + told.err
    assert "hunter2" not in told.out + told.err + caplog.text


def test_a_drivers_error_in_the_log_shows_no_secret(
    published: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver that cannot write exclusively, and repeats the URL.

    At the level DEBUG there is one line, without a traceback.
    """
    caplog.set_level(logging.DEBUG, "dedup_sdk")
    url = "memory://key:hunter2@bucket/later"
    real = MemoryFileSystem.pipe_file

    def pipe_file(self: MemoryFileSystem, path: str, value: bytes, mode: str = "overwrite") -> Any:
        if mode == "create":
            raise ValueError(f"PUT {url}/{path} with If-None-Match: not implemented")
        return real(self, path, value)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    monkeypatch.setattr(MemoryFileSystem, "_pipe_file", None, raising=False)
    publish_snapshot(published, url)
    assert "no exclusive write" in caplog.text
    assert "hunter2" not in caplog.text
    assert "Traceback" not in caplog.text
