"""Settings of Kafka clients from a command line: one at a time, from files, and from the environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dedup_sdk._kafka.client_config import client_settings, is_setting
from dedup_sdk.errors import ConfigurationError

FILE = """\
# a comment
! another = one
security.protocol=SASL_SSL
sasl.jaas.config = org.example.Login required \\
    username="me" \\
    password="hun:ter=2";
fetch.max.bytes: 100
ssl.truststore.location   C\\:\\\\certs\\\\t.jks
name\\ with\\=signs=\\u00e9\\ttab
"""


def test_files_are_read_as_java_reads_them(tmp_path: Path) -> None:
    """Comments, continued lines, the three ways to end a name, and escapes; the later value counts."""
    path = tmp_path / "client.properties"
    path.write_text(FILE, encoding="utf-8")
    assert client_settings("--client-config", [str(path), "security.protocol=SSL"]) == {
        "security.protocol": "SSL",
        "sasl.jaas.config": 'org.example.Login required username="me" password="hun:ter=2";',
        "fetch.max.bytes": "100",
        "ssl.truststore.location": "C:\\certs\\t.jks",
        "name with=signs": "é\ttab",
    }


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("sasl.password=a=b", True),
        ("ssl.key.password=", True),
        ("sasl.jaas-config_2=x\ny", True),
        ("client.properties", False),
        ("debug=all", True),
        ("./a.b=c", False),
        ("a b=c", False),
        ("/etc/kafka.d=1/client.properties", False),
        ("a/b=1", False),
        ("=x", False),
        ("", False),
    ],
)
def test_a_text_is_a_setting_or_a_file_by_itself(text: str, setting: bool) -> None:  # noqa: FBT001 (a parameter)
    """The key before the first equals sign makes the difference, whatever files there are."""
    assert is_setting(text) == setting


def test_a_file_whose_name_looks_like_a_setting_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a path; the bare name stays a setting, also where the file is there."""
    monkeypatch.chdir(tmp_path)
    Path("a.b=c").write_text("security.protocol=SSL")
    assert client_settings("--client-config", ["./a.b=c"]) == {"security.protocol": "SSL"}
    assert client_settings("--client-config", ["a.b=c"]) == {"a.b": "c"}


def test_a_value_may_be_empty(tmp_path: Path) -> None:
    """As in the files of Java's tools, where this switches the check of host names off."""
    path = tmp_path / "client.properties"
    path.write_text("ssl.endpoint.identification.algorithm=\nacks = all\n")
    assert client_settings("--client-config", [str(path)]) == {
        "ssl.endpoint.identification.algorithm": "",
        "acks": "all",
    }


def test_the_environment_has_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable is filled in anywhere in a value, of a file and of an argument; one that is not set is named."""
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    path = tmp_path / "client.properties"
    path.write_text("sasl.password=${env:KAFKA_PASSWORD}\n")
    jaas = 'sasl.jaas.config=Login password="${env:KAFKA_PASSWORD}" user="${env:KAFKA_PASSWORD}";'
    assert client_settings("--client-config", [str(path), jaas]) == {
        "sasl.password": "hunter2",
        "sasl.jaas.config": 'Login password="hunter2" user="hunter2";',
    }
    with pytest.raises(
        ConfigurationError, match=r"sasl\.password: the environment variable 'NO_SUCH_VARIABLE' is not"
    ):
        client_settings("--client-config", ["sasl.password=hunter2${env:NO_SUCH_VARIABLE}"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a=1\npassword\n", "line 2, is not a setting"),
        ("=hunter2\n", "line 1, is not a setting"),
        (b"\xff\xfe", "is not valid UTF-8"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, content: str | bytes, says: str) -> None:
    """One line says the fault and its place, without showing a value."""
    path = tmp_path / "client.properties"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigurationError, match=re.escape(says)) as caught:
        client_settings("--client-config", [str(path)])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sasl.password:hunter2", "cannot be read: No such file or directory; give a file"),
        ("pass word=hunter2", "pass word=*** is not a file, and its key is not one of a setting"),
        ("=hunter2", "=*** is not a file"),
        ("", "is empty; give e.g. security.protocol=SSL"),
        ("/no/such/file", "/no/such/file cannot be read: No such file"),
        ("a\0b", "is not a file name"),
        ("a" * 5_000, "File name too long"),
    ],
)
def test_what_is_no_setting_is_not_shown(text: str, says: str) -> None:
    """A text that is neither a setting nor a file is named, with the form to give, without possible passwords."""
    with pytest.raises(ConfigurationError, match=re.escape(says)) as caught:
        client_settings("--client-config", [text])
    assert "hunter2" not in str(caught.value)
