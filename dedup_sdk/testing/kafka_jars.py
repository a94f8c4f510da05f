"""Kafka's published jars: fetched once by Maven, or by the Apache Ivy inside pyspark, and kept in the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing.cache import cache_folder, filled_once
from dedup_sdk.testing.java_home import find_java

DEFAULT_VERSION = "4.1.1"

_TIMEOUT_S = 600
_WAY_OUT = "give libs=<the folder libs/ of a Kafka distribution>"

# A logger that needs no file of its own; without one the reason of a failed start would go nowhere.
_LOGGER = ("org.slf4j", "slf4j-simple", "1.7.36")

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-libs</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}
  </dependencies>
</project>
"""
_POM_DEPENDENCY = """
    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"""

_IVY = """\
<ivy-module version="2.0">
  <info organisation="local" module="kafka-libs"/>
  <dependencies>{}
  </dependencies>
</ivy-module>
"""
_IVY_DEPENDENCY = """
    <dependency org="{}" name="{}" rev="{}" conf="*->default"/>"""


def kafka_jars(kafka_version: str = DEFAULT_VERSION, *, libs: Path | str | None = None) -> Path:
    """Return a folder that holds the broker of `kafka_version` and all it needs, as ``*.jar``.

    The first call downloads 43 MB (6 s with Maven, about 30 s with Ivy), later ones look at file sizes only. Safe for
    several processes at once.

    Args:
        kafka_version: e.g. "4.1.1".
        libs: a folder that holds the jars already; nothing is downloaded then, and `kafka_version` is not looked at.

    Raises:
        KafkaHelperError: `libs` holds no broker, or nothing is there to download with, or the download failed.
    """
    if libs is not None:
        folder = Path(libs)
        if not list(folder.glob("kafka_2.1*.jar")):
            raise KafkaHelperError(f"libs={folder} holds no kafka_2.13-*.jar: {_WAY_OUT}")
        return folder.resolve()
    return filled_once(
        cache_folder() / f"kafka-{kafka_version}", lambda partial: _fetch(kafka_version, partial)
    )


def ivy_jar() -> Path | None:
    """Return pyspark's own ``ivy-*.jar``; None where pyspark is not installed."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))), None)


def _fetch(kafka_version: str, folder: Path) -> None:
    failures = []
    for fetch in (_fetch_with_maven, _fetch_with_ivy):
        failure = fetch(kafka_version, folder)
        if failure is None:
            return _verify(kafka_version, folder)
        failures.append(failure)
        shutil.rmtree(folder)
        folder.mkdir()
    raise KafkaHelperError(
        f"Kafka {kafka_version} is not in {folder.parent} and cannot be fetched ({'; '.join(failures)}): "
        f"install dedup-sdk[testing] or Maven, or {_WAY_OUT}"
    )


def _fetch_with_maven(kafka_version: str, folder: Path) -> str | None:
    program = shutil.which("mvn")
    if program is None:
        return "no mvn on the PATH"
    work = folder / "work"
    work.mkdir()
    (work / "pom.xml").write_text(
        _POM.format(_dependencies(_POM_DEPENDENCY, kafka_version)), encoding="utf-8"
    )
    command = [
        program,
        "--batch-mode",
        "--quiet",
        f"--file={work / 'pom.xml'}",
        # Not the user's: what is fetched stays in one place that can be removed.
        f"-Dmaven.repo.local={cache_folder() / 'maven'}",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={folder}",
    ]
    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    failure = _run("mvn", command, environment)
    shutil.rmtree(work)
    return failure


def _fetch_with_ivy(kafka_version: str, folder: Path) -> str | None:
    jar = ivy_jar()
    if jar is None:
        return "pyspark, whose Ivy could fetch it, is not installed"
    work = folder / "work"
    work.mkdir()
    (work / "ivy.xml").write_text(
        _IVY.format(_dependencies(_IVY_DEPENDENCY, kafka_version)), encoding="utf-8"
    )
    command = [
        str(find_java().executable),
        # Ivy writes into the home directory and reads a Maven repository there.
        f"-Duser.home={work}",
        "-jar",
        str(jar),
        "-warn",
        "-cache",
        str(work / "cache"),
        "-ivy",
        str(work / "ivy.xml"),
        "-retrieve",
        f"{folder}/[artifact]-[revision](-[classifier]).[ext]",
    ]
    failure = _run("Ivy", command, dict(os.environ))
    shutil.rmtree(work)
    return failure


def _dependencies(template: str, kafka_version: str) -> str:
    return "".join(
        template.format(*each) for each in (("org.apache.kafka", "kafka_2.13", kafka_version), _LOGGER)
    )


def _run(name: str, command: list[str], environment: dict[str, str]) -> str | None:
    """Run `command`; return why it failed, in one line, or None."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name}: {error}"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    telling = [line for line in lines if "ERROR" in line or "UNRESOLVED" in line or "FAILED" in line] or lines
    return f"{name} ended with {done.returncode}: {telling[0][:300] if telling else 'it said nothing'}"


def _verify(kafka_version: str, folder: Path) -> None:
    """Refuse jars that cannot be read: a broken one would only show itself in the middle of a test."""
    for jar in folder.glob("*.jar"):
        try:
            with zipfile.ZipFile(jar) as archive:
                archive.namelist()
        except (OSError, zipfile.BadZipFile) as error:
            raise KafkaHelperError(
                f"{jar.name} of Kafka {kafka_version} is broken ({error}): try again"
            ) from None
    for artifact in ("kafka_2.13", "kafka-clients", "kafka-server"):
        if not (folder / f"{artifact}-{kafka_version}.jar").exists():
            raise KafkaHelperError(
                f"{artifact} of Kafka {kafka_version} was not among what was fetched: {_WAY_OUT}"
            )
