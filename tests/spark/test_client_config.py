"""Settings of the clients from the command line and from files, and what is never shown of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dedup_sdk.errors import ConfigurationError
from spark_backfill.client_config import client_config, read_options, secrets_of, without_secrets

FILE = """\
# a comment
! another = one
security.protocol=SASL_SSL
sasl.jaas.config = org.example.Login required \\
    username="me" \\
    password="hun:ter=2";
kafka.fetch.max.bytes: 100
ssl.truststore.location   C\\:\\\\certs\\\\t.jks
name\\ with\\=signs=\\u00e9\\ttab
"""


def test_files_are_read_as_java_reads_them(tmp_path: Path) -> None:
    """Comments, continued lines, the three ways to end a name, and escapes; ``kafka.`` before a name is left out."""
    path = tmp_path / "client.properties"
    path.write_text(FILE, encoding="utf-8")
    assert client_config("--kafka-config", [str(path), "security.protocol=SSL"]) == {
        "security.protocol": "SSL",
        "sasl.jaas.config": 'org.example.Login required username="me" password="hun:ter=2";',
        "fetch.max.bytes": "100",
        "ssl.truststore.location": "C:\\certs\\t.jks",
        "name with=signs": "é\ttab",
    }


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a=1\npassword\n", "line 2, is no setting"),
        ("=hunter2\n", "line 1, is no setting"),
        ("group.id=x\n", "group.id cannot be set: give --group"),
        (b"\xff\xfe", "is no text in UTF-8"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, content: str | bytes, says: str) -> None:
    """One line says what is wrong and where, without showing a value."""
    path = tmp_path / "client.properties"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigurationError, match=re.escape(says)) as caught:
        client_config("--kafka-config", [str(path)])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["sasl.password:hunter2", "=hunter2", "", "/no/such/file"])
def test_what_is_no_setting_is_not_shown(text: str) -> None:
    """A text that is neither a setting nor a file is named without what may be a password."""
    with pytest.raises(ConfigurationError) as caught:
        client_config("--kafka-config", [text])
    assert "hunter2" not in str(caught.value) or text == "=hunter2"
    with pytest.raises(ConfigurationError, match="write --read-option NAME=VALUE"):
        read_options("--read-option", ["x"])


def test_secrets_are_known_by_their_names() -> None:
    """Passwords, tokens, keys and what is quoted in a login line are masked wherever they stand; other values are shown."""
    secrets = secrets_of(
        {"sasl.password": "hunter2", "security.protocol": "SSL", "sasl.jaas.config": 'x y="s3cret";'},
        {"fs.s3a.secret.key": "abcdef", "token": "ab"},
    )
    line = without_secrets("hunter2 at SSL with s3cret and abcdef, ab", secrets)
    assert line == "*** at SSL with *** and ***, ab"
