"""The broker's published jars, fetched once into the cache.

Those of `DEFAULT_VERSION` are listed beside this file, with their SHA-256, and come by HTTP from Maven Central, or from
the repository that ``$DEDUP_MAVEN_URL`` names. Maven finds out those of other versions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from dedup_sdk._masking import error_shown, shown, without_secrets
from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing._cache import cache_folder, filled_once
from dedup_sdk.testing._java_home import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_VERSION: Final = "4.1.1"
REPOSITORY: Final = "https://repo1.maven.org/maven2"
_ELSEWHERE: Final = "DEDUP_MAVEN_URL"
_AT_ONCE: Final = 8
_ANSWER_S: Final = 60
_ATTEMPTS: Final = 3
_FETCH_S: Final = 600
_WAY_OUT: Final = "give libs=<the folder libs/ of a Kafka distribution>"

# A logger that needs no configuration file; without one the reason of a failed start would be lost.
_LOGGER: Final = ("org.slf4j", "slf4j-simple", "1.7.36")

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-libs</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}
  </dependencies>
</project>
"""
_POM_DEPENDENCY: Final = """
    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"""


def kafka_jars(kafka_version: str = DEFAULT_VERSION, *, libs: Path | str | None = None) -> Path:
    """Return a folder with the jars of the broker of `kafka_version`.

    The first call downloads 43 MB, later ones check file sizes only. Safe for several processes at once.

    Args:
        kafka_version: e.g. "4.1.1"; any other one needs Maven.
        libs: a folder that has the jars already; then nothing is downloaded, and `kafka_version` is ignored.

    Raises:
        KafkaHelperError: `libs` has no broker, or there is no Maven for another version, or the download failed.
    """
    if libs is not None:
        folder = Path(libs)
        if not list(folder.glob("kafka_2.1*.jar")):
            raise KafkaHelperError(f"libs={folder} holds no kafka_2.13-*.jar: {_WAY_OUT}")
        return folder.resolve()
    return filled_once(
        cache_folder() / f"kafka-{kafka_version}", lambda partial: _fetch(kafka_version, partial)
    )


def _fetch(kafka_version: str, folder: Path) -> None:
    if kafka_version == DEFAULT_VERSION:
        _download(os.environ.get(_ELSEWHERE) or REPOSITORY, folder)
    elif failure := _fetch_with_maven(kafka_version, folder):
        raise KafkaHelperError(
            f"Kafka {kafka_version} is not in {folder.parent} and cannot be fetched ({failure}): only "
            f"{DEFAULT_VERSION} comes without Maven; install it, or {_WAY_OUT}"
        )
    _verify(kafka_version, folder)


def _listed() -> Iterator[tuple[str, str]]:
    """Yield the path of each jar in a Maven repository, and its SHA-256."""
    listing = (
        files("dedup_sdk.testing").joinpath(f"kafka-{DEFAULT_VERSION}.sha256").read_text(encoding="ascii")
    )
    for line in listing.splitlines():
        digest, path = line.split()
        yield path, digest


def _download(repository: str, folder: Path) -> None:
    """Download the listed jars from a repository: an ``https://`` or ``http://`` URL, or the ``file://`` URL of a copy.

    A user and a password in the URL are sent as they are asked for by HTTP.
    """
    parts = urlsplit(repository)
    if parts.scheme not in {"https", "http", "file"}:
        raise KafkaHelperError(
            f"{_ELSEWHERE}={shown(repository)}: give the URL of a Maven repository, e.g. {REPOSITORY}"
        )
    login, _, host = parts.netloc.rpartition("@")
    base = parts._replace(netloc=host).geturl().rstrip("/")
    headers = {"Authorization": f"Basic {b64encode(unquote(login).encode()).decode()}"} if login else {}

    def one(path: str, digest: str) -> None:
        data = _read(Request(f"{base}/{path}", headers=headers))  # noqa: S310 (its scheme was checked)
        if sha256(data).hexdigest() != digest:
            raise KafkaHelperError(
                f"{base}/{path} is not the file that Kafka published: set {_ELSEWHERE} to another repository"
            )
        (folder / path.rpartition("/")[2]).write_bytes(data)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="dedup-jars") as pool:
        try:
            for _ in pool.map(lambda jar: one(*jar), _listed()):
                pass
        except (OSError, HTTPException) as error:
            pool.shutdown(cancel_futures=True)
            why = without_secrets(error_shown(error), {login, unquote(login)} - {""})
            raise KafkaHelperError(
                f"Kafka {DEFAULT_VERSION} is not in {folder.parent} and cannot be fetched from {base} ({why}): try "
                f"again, set {_ELSEWHERE} to a Maven repository that this machine reaches, or {_WAY_OUT}"
            ) from None


def _read(request: Request) -> bytes:
    """Return what a URL answers; an error of the network is tried again."""
    for attempt in range(_ATTEMPTS):
        try:
            with urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310 (as above)
                data: bytes = answer.read()
                return data
        except (OSError, HTTPException):
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError  # the last attempt returned, or raised


def _fetch_with_maven(kafka_version: str, folder: Path) -> str | None:
    program = shutil.which("mvn")
    if program is None:
        return "no mvn on the PATH"
    work = folder / "work"
    work.mkdir()
    asked = (("org.apache.kafka", "kafka_2.13", kafka_version), _LOGGER)
    pom = _POM.format("".join(_POM_DEPENDENCY.format(*each) for each in asked))
    (work / "pom.xml").write_text(pom, encoding="utf-8")
    command = [
        program,
        "--batch-mode",
        "--quiet",
        f"--file={work / 'pom.xml'}",
        # Not the user's repository: downloads stay in one folder that can be removed.
        f"-Dmaven.repo.local={cache_folder() / 'maven'}",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={folder}",
    ]
    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_FETCH_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"mvn: {error}"
    finally:
        shutil.rmtree(work)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    telling = [line for line in lines if "ERROR" in line] or lines
    return f"mvn ended with {done.returncode}: {telling[0][:300] if telling else 'it said nothing'}"


def _verify(kafka_version: str, folder: Path) -> None:
    """Refuse unreadable jars: a broken one would only fail in the middle of a test."""
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
                f"{artifact} of Kafka {kafka_version} was not among the fetched jars: {_WAY_OUT}"
            )
