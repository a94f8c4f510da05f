from __future__ import annotations

import shutil
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dedup_sdk.errors import ConfigurationError, KafkaHelperError
from dedup_sdk.testing import LocalKafka
from tests.support.http_files import served

if TYPE_CHECKING:
    from collections.abc import Iterator

LISTED = [
    line.split()[1]
    for line in files("dedup_sdk.testing").joinpath("kafka-4.1.1.sha256").read_text().splitlines()
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and no Maven."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DEDUP_CACHE", str(folder))
    monkeypatch.setenv("PATH", str(tmp_path))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def refused(**settings: object) -> str:
    """What a broker says that cannot start for want of its jars."""
    with pytest.raises(KafkaHelperError) as caught:
        LocalKafka(**settings).start()  # type: ignore[arg-type]
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_a_folder_without_a_broker_is_refused(tmp_path: Path) -> None:
    """The wrong folder is named at once, not by a Java that finds no class."""
    assert f"libs={tmp_path} holds no kafka_2.13" in refused(libs=tmp_path)


def test_another_version_needs_maven(cache: Path) -> None:
    """Without Maven and libs= the error says which version comes without; nothing is left in the cache."""
    said = refused(version="4.0.0")
    assert "only 4.1.1 comes without Maven" in said
    assert "libs=" in said
    assert not (cache / "kafka-4.0.0").exists()


def test_the_jars_come_from_the_repository_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """By plain HTTP, with user and password where the URL has them; a file of other bytes is refused by name."""
    for path in LISTED:
        jar = tmp_path / "maven" / path
        jar.parent.mkdir(parents=True, exist_ok=True)
        jar.write_bytes(b"not the jar")
    with served(tmp_path / "maven") as (address, asked):
        monkeypatch.setenv("DEDUP_MAVEN_URL", f"http://app:hunter2@{address}")
        said = refused()
    assert "is not the file that Kafka published" in said
    assert "hunter2" not in said
    assert {each.path.removeprefix("/") for each in asked} <= set(LISTED)
    assert {each.login for each in asked} == {"app:hunter2"}
    assert not (cache / "kafka-4.1.1").exists()


def test_a_repository_that_has_none_of_them_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the answer, and both ways out; without the password of its URL."""
    with served(tmp_path) as (address, _):
        monkeypatch.setenv("DEDUP_MAVEN_URL", f"http://app:hunter2@{address}/no")
        said = refused()
    assert "404" in said
    assert "DEDUP_MAVEN_URL" in said
    assert "libs=" in said
    assert "hunter2" not in said


def test_a_repository_that_is_no_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked for, and nothing is told of a password in it."""
    monkeypatch.setenv("DEDUP_MAVEN_URL", "ftp://app:hunter2@host/maven2")
    assert refused().startswith("DEDUP_MAVEN_URL='ftp://***@host/maven2': give the URL of a Maven repository")


def test_all_jars_are_listed_with_their_digest() -> None:
    """Of the default version, so that neither Maven nor Spark is needed for it."""
    lines = files("dedup_sdk.testing").joinpath("kafka-4.1.1.sha256").read_text().splitlines()
    assert all(len(line.split()[0]) == len(sha256().hexdigest()) for line in lines)
    assert len({path.rpartition("/")[2] for path in LISTED}) == len(LISTED)
    assert "org/apache/kafka/kafka_2.13/4.1.1/kafka_2.13-4.1.1.jar" in LISTED


def test_a_port_that_is_none_is_refused() -> None:
    """When the broker is made, not by Kafka's log."""
    with pytest.raises(ConfigurationError, match="port=70000: give a TCP port"):
        LocalKafka(port=70_000)
