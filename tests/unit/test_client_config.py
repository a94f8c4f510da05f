"""Settings of Kafka clients from a command line: one at a time, from files, and from the environment."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from dedup_sdk._admin.client_config import client_settings, is_setting
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


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's, whose function notes each call in the file of that name."""
    asked = tmp_path / "asked"
    (tmp_path / "shop_tokens.py").write_text(
        "import time\nfrom pathlib import Path\nNUMBER = 5\ndef none(): ...\n"
        f"def token(config):\n    Path({str(asked)!r}).write_text(config)\n    return 'abc', time.time() + 3600\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return asked


def test_a_function_makes_the_tokens(tokens: Path) -> None:
    """By its name, so that it reaches other processes, where the client calls it."""
    settings = client_settings(
        "--client-config",
        ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER", "sasl.oauthbearer.config=shop",
         "oauth_cb=py:shop_tokens:token", "bootstrap.servers=127.0.0.1:9", "log_level=0"],
    )  # fmt: skip
    there = pickle.loads(pickle.dumps(settings))  # noqa: S301 (its own)
    assert there == settings
    AdminClient(there).poll(5)
    assert tokens.read_text() == "shop"


def test_workers_import_the_function_themselves(tokens: Path, tmp_path: Path) -> None:
    """A pickled configuration has the function's name, as Spark sends it."""
    settings = client_settings("--client-config", ["oauth_cb=py:shop_tokens:token"])
    (tmp_path / "settings").write_bytes(pickle.dumps(settings))
    program = "import pickle; print(pickle.load(open('settings', 'rb'))['oauth_cb']('there')[0])"
    worker = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert worker.stdout == "abc\n"
    assert tokens.read_text() == "there"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("hunter2", "oauth_cb names no function; write e.g. oauth_cb=py:shop.kafka:token"),
        ("py:hunter2", "oauth_cb names no function"),
        ("py:shop_tokens:nothing", "oauth_cb=py:shop_tokens:nothing cannot be imported (AttributeError: "),
        ("py:no_such_shop:token", "cannot be imported (ModuleNotFoundError: "),
        ("py:shop_tokens:NUMBER", "oauth_cb=py:shop_tokens:NUMBER is 5; name a function of one argument"),
        ("py:shop_tokens:none", "is <function none>; name a function of one argument"),
    ],
)
@pytest.mark.usefixtures("tokens")
def test_what_is_no_function_is_refused_in_one_line(value: str, said: str) -> None:
    """Before a client is made; a value that may be a token is not shown."""
    with pytest.raises(ConfigurationError) as caught:
        client_settings("--client-config", [f"oauth_cb={value}"])
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)
