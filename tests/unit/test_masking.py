from __future__ import annotations

import time
from pathlib import Path

import pytest

from dedup_sdk._masking import MAX_ERROR_CHARS, error_text, masked_urls, shown

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\nline\t only", "one line only"),
        ("could not reach postgresql://app:hunter2@db:5432/x", "could not reach postgresql://***@db:5432/x"),
        ("password=hunter2, user=app", "password=***"),
        ("{'sasl.password': 'hunter 2', 'user': 'app'}", "{'sasl.password': ***"),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ('api_key="a b" and API-KEY:c', "api_key=***"),
        ("the token is wrong", "the token is wrong"),
        ("KeyError: 'offset'", "KeyError: 'offset'"),
        ("java.security.InvalidKeyException: too short", "java.security.InvalidKeyException: too short"),
        ("TokenError: token=hunter2", "TokenError: token=***"),
        ("KeyError: password: hunter2", "KeyError: password: ***"),
        ("\ud800", "?"),
    ],
)
def test_an_error_is_one_line_without_credentials(text: str, shown: str) -> None:
    """Text like a credential is masked, the rest is kept."""
    assert error_text(ValueError(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "https://user:p@hunter2@host/x",
        "amqp://user:pw/hunter2@host",
        "aws_secret_access_key=hunter2",
        "access_key=hunter2",
        "private_key=hunter2",
        "passphrase: hunter2",
        "pass=hunter2",
        "keyError: hunter2",
        "KeyError=hunter2",
        "{'KeyError': 'hunter2'}",
        "Key: hunter2Error: no",
        "PGPASS=hunter2",
        "credentials=hunter2",
        "secretKey=hunter2",
        "sasl.password => hunter2",
        "password -> hunter2",
        "{'password': b'a hunter2'}",
        "password='a\\'hunter2'",
        "password='a hunter2\\",
        'password="a hunter2',
        '{"password": ["a hunter2"]}',
        '{\\"token\\": \\"a hunter2\\"}',
        "client-secret\\u003dhunter2",
        "pwd={a;hunter2}",
        "password=(hunter2)",
        "password\x00=hunter2",
        "Authorization: Digest hunter2",
        "Authorization: ApiKey hunter2",
        "{'authorization': 'Negotiate a, hunter2'}",
        "Cookie: a=b; session=hunter2",
        "token: bearer hunter2",
        "credentials=('bob', 'hunter2')",
        "credentials=('bob',\n 'hunter2')",
        "password='it''s hunter2'",
        "password='it\ns hunter2'",
        "password: a b hunter2",
        "key: -----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----",
        " " * 3_950 + "amqp://user:hunter2" + "x" * 60 + "@host",
        " " * 249_980 + "amqp://user:hunter2" + "x" * 60 + "@host",
        "password=" + "x" * 3_950 + ", amqp://user:hunter2" + "x" * 60 + "@host",
    ],
)
def test_no_credential_is_let_through(text: str) -> None:
    """Whatever the name, the quotes, the place in a long text: nothing of the credential is left."""
    assert SECRET in text
    assert SECRET not in error_text(ValueError(text))
    assert SECRET not in error_text(ValueError(f"cannot connect: {text}; try again"))


def test_the_line_after_a_credential_is_kept() -> None:
    """Of a header with credentials the rest of its line goes, the next line stays."""
    assert error_text(ValueError("Authorization: A b, c\nstatus 401")) == "Authorization: *** status 401"


@pytest.mark.parametrize(
    "text",
    [
        "password" * 1_000_000,
        "key" * 1_000_000,
        "key=" * 1_000_000,
        "key\\" * 1_000_000,
        "password" + " " * 5_000_000 + "x",
        "authorization " * 500_000,
        "password='" + "\\" * 5_000_000,
        "pwd={" * 1_000_000,
        "://" * 2_000_000,
        "://" + "a" * 5_000_000,
        "://@" * 2_000_000,
        " " * 5_000_000,
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_an_error_of_any_length_is_cut_in_no_time(text: str) -> None:
    """A text of megabytes becomes 1,000 characters without being searched as a whole."""
    began = time.process_time()
    assert len(error_text(ValueError(text))) <= MAX_ERROR_CHARS
    assert time.process_time() - began < 1


def test_a_long_text_shows_its_beginning() -> None:
    """It is cut where the limit is, and an ellipsis says so."""
    shown = error_text(ValueError("wrong " * 1_000_000))
    assert len(shown) == MAX_ERROR_CHARS
    assert shown.startswith("wrong wrong")
    assert shown.endswith("…")


def test_an_error_that_cannot_tell_itself_has_a_text() -> None:
    """Where an error's own `__str__` raises, the text says so, and nothing is raised."""

    class BrokenError(Exception):
        def __str__(self) -> str:
            raise AttributeError("no such thing: password=hunter2")

    assert error_text(BrokenError()) == "<str() of the error raised AttributeError>"


def test_in_a_text_of_ours_only_urls_are_masked() -> None:
    """Our words on keys and columns are to be read as they are."""
    told = f"archive 's3a://app:{SECRET}@bucket/x' has no column 'k': say --columns key=COLUMN"
    assert masked_urls(told) == told.replace(f"app:{SECRET}", "***")


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (
            f"archive 'https://h/a.parquet?X-Amz-Signature={SECRET}' is gone",
            "archive 'https://h/a.parquet?***' is gone",
        ),
        (f"wasbs://c@h/a?sv=2024&sig={SECRET}: no", "wasbs://***@h/a?***: no"),
        (f"(s3a://bucket/x?token={SECRET}),", "(s3a://bucket/x?***),"),
        (f"HTTPS://h/a?{SECRET}", "HTTPS://h/a?***"),
        (f"https://h/a?x=1@{SECRET}", "https://***"),
        (f"https://h/a#access_token={SECRET}&x=1/2", "https://h/a#***"),
    ],
)
def test_the_query_of_a_url_is_masked(told: str, shown: str) -> None:
    """Presigned URLs bear in it the secret that opens them, under any name; also where only URLs are masked."""
    assert (masked_urls(told), error_text(ValueError(told))) == (shown, shown)


@pytest.mark.parametrize(
    "told",
    ["s3a://lake/orders/part-?.parquet", "s3a://lake/dt=2024-0?/h=1/*", "is it https://h/a?", "why? a=b"],
)
def test_what_is_no_query_is_shown(told: str) -> None:
    """A question mark in a path is a character of a glob."""
    assert masked_urls(told) == told


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (f"redis://app:{SECRET}@host/0", "'redis://***@host/0'"),
        (f"redis://app:a {SECRET}/@host/0", "'redis://***@host/0'"),
        (Path(f"redis://app:{SECRET}@host/0"), "'redis:/***@host/0'"),
        (["a", f"redis://app:{SECRET}@host"], "['a', 'redis://***@host']"),
        ({"user": "app", "sasl.password": SECRET}, "{'user': 'app', 'sasl.password': ***"),
        (f"host=db password=a {SECRET}", "'host=db password=***'"),
        ("--columns key=COLUMN", "'--columns key=COLUMN'"),
        ("py:shop.ids:order_id@1", "'py:shop.ids:order_id@1'"),
        ("py:shop.tokens:token", "'py:shop.tokens:token'"),
        (f'{{"password": "{SECRET}"}}', "'{\"password\": ***'"),
        (Path("var/dedup"), "'var/dedup'"),
        (b"x", "b'x'"),
        (print, "<function print>"),
        (Path, "<class Path>"),
        (object(), "<object>"),
    ],
)
def test_a_value_is_shown_without_credentials(value: object, said: str) -> None:
    """What may be one is masked; what is none is shown as it is."""
    assert shown(value) == said
