"""The meaning of ``--columns``, and its errors."""

from __future__ import annotations

import re

import pytest

from dedup_sdk.errors import ConfigurationError
from spark_backfill.column_map import ColumnPlace, parse_columns, place_of


def test_names_forms_and_lists() -> None:
    """Entries may come in one list or in several.

    A form stands behind the last colon, and a column not named stands where it is.
    """
    places = parse_columns(["offset=meta.o, timestamp=ts:us", "key=a:b:hex,value=*:json,headers=-"])
    assert places == {
        "offset": ColumnPlace("meta.o"), "timestamp": ColumnPlace("ts", "us"), "key": ColumnPlace("a:b", "hex"),
        "value": ColumnPlace("*", "json"), "headers": ColumnPlace("-"),
    }  # fmt: skip
    assert place_of(places, "topic") == ColumnPlace("topic")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("offset", "'offset' maps nothing"),
        ("offset=", "'offset=' maps nothing"),
        ("", "'' maps nothing"),
        ("ofset=o", "Kafka has no column 'ofset'; its columns are topic, partition, offset"),
        ("offset=a,offset=b", "maps offset twice: a and b"),
        ("timestamp=ts:min", "timestamp has no form 'min'; its forms: s, ms, us, ns, iso"),
        ("offset=o:ms", "offset has no form 'ms'; its forms: none"),
        ("offset=-", "a record always has offset"),
        ("key=-:hex", "a record always has key"),
        ("key=*:json", "only value=*:json takes all other columns"),
        ("value=*", "only value=*:json takes all other columns"),
        ("key=:hex", "names no column"),
        ("header.=a", "Kafka has no column 'header.'"),
        ("headers.key=a", "give headers.key and headers.value"),
        ("headers.key=a,headers.value=b,headers=c", "which are two forms of one"),
        ("header.id=a:json", "header.id has no form 'json'; its forms: utf8, base64, hex"),
        ("header.id=-", "a record always has header.id"),
        ("partition=path:x", "has 0 groups, and one says what it finds"),
        ("partition=path:(", "is no pattern"),
        ("offset=path:(x)", "offset has no form '(x)'"),
    ],
)
def test_what_is_no_mapping_is_named(text: str, says: str) -> None:
    """Each mistake is one line with the entry and the text to write."""
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        parse_columns([text])
