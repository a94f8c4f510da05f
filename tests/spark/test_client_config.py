"""Settings of the clients that the job makes itself, and the values never shown of the others."""

from __future__ import annotations

import pytest

from dedup_sdk._masking import without_secrets
from dedup_sdk.errors import ConfigurationError
from spark_backfill.client_config import read_options, secrets_of, take_consumers_own


def test_a_consumers_own_settings_are_taken_out() -> None:
    """Its servers and its group are returned; another isolation level than the job's is refused, without the value."""
    settings = {
        "bootstrap.servers": "b:1", "group.id": "g", "auto.offset.reset": "latest", "enable.auto.commit": "false",
        "isolation.level": "read_committed", "security.protocol": "SSL",
    }  # fmt: skip
    assert take_consumers_own(settings) == ("b:1", "g")
    assert settings == {"security.protocol": "SSL"}
    with pytest.raises(
        ConfigurationError, match=r"--client-config isolation\.level cannot be set: "
    ) as caught:
        take_consumers_own({"isolation.level": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_an_option_of_a_reader_is_a_name_and_a_value() -> None:
    """With any name; a text without a value is refused."""
    assert read_options(["multiLine=true", "a.b=c=d"]) == {"multiLine": "true", "a.b": "c=d"}
    with pytest.raises(ConfigurationError, match="write --read-option NAME=VALUE"):
        read_options(["x"])


def test_secrets_are_known_by_their_names() -> None:
    """Passwords, tokens, keys and quoted texts of a login line are masked wherever they stand.

    Other values are shown.
    """
    secrets = secrets_of(
        {"sasl.password": "hunter2", "security.protocol": "SSL", "sasl.jaas.config": 'x y="s3cret";'},
        {"fs.s3a.secret.key": "abcdef", "token": "ab"},
    )
    line = without_secrets("hunter2 at SSL with s3cret and abcdef, ab", secrets)
    assert line == "*** at SSL with *** and ***, ab"
