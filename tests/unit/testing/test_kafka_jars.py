from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing import _local_kafka as module
from dedup_sdk.testing._local_kafka import ivy_jar, kafka_jars

if TYPE_CHECKING:
    from pathlib import Path


def test_own_jars_are_taken_as_they_are(tmp_path: Path) -> None:
    """libs= downloads nothing and needs no cache."""
    (tmp_path / "kafka_2.13-4.0.0.jar").touch()

    assert kafka_jars(libs=tmp_path) == tmp_path


def test_a_folder_without_a_broker_is_refused(tmp_path: Path) -> None:
    """The wrong folder is named at once, not by a Java that finds no class."""
    with pytest.raises(KafkaHelperError, match=f"libs={tmp_path} holds no kafka_2.13"):
        kafka_jars(libs=tmp_path)


def test_nothing_to_download_with_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Maven, Ivy and libs= the error names the package to install; nothing is left in the cache."""
    monkeypatch.setenv("DEDUP_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "ivy_jar", lambda: None)

    with pytest.raises(KafkaHelperError) as caught:
        kafka_jars("4.1.1")

    assert "dedup-sdk[testing]" in str(caught.value)
    assert "libs=" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "kafka-4.1.1").exists()


def test_pyspark_brings_ivy() -> None:
    """The extra [testing] is enough to fetch the jars: PySpark carries Ivy where it is looked for."""
    pytest.importorskip("pyspark")

    found = ivy_jar()

    assert found is not None
    assert found.name.startswith("ivy-")
