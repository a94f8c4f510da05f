"""ID specs against their meaning, written down again in the plainest way."""

from __future__ import annotations

import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk import ids
from dedup_sdk._record import Record, type_headers
from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids import IdSpec, RecordFields, digest_parts, id_spec
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_value
from dedup_sdk.ids._spec import GroupKeys

LIMIT = 65_536

texts = st.text(st.characters(exclude_categories=["Cs"]))
names = st.one_of(
    texts.filter(bool), st.sampled_from(["dedup-id", "a+b", "100%", " ", "key", "%2B", "a:b", "\x00"])
)
tokens = st.one_of(texts, st.sampled_from(["~", "/", "~1", "0", "+", "%", ""]))
pointers = st.lists(tokens, min_size=1).map(
    lambda found: "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in found)
)
parts = st.one_of(
    names.map(ids.header),
    pointers.map(ids.json),
    st.builds(ids.key),
    st.builds(ids.value),
    st.builds(ids.cloudevents),
    st.builds(
        ids.py,
        st.sampled_from(["math:sin", "tests.unit.ids.callables:Orders.offset"]),
        version=st.sampled_from(["1", "a+b %"]),
    ),
)


def _sum(found: list[IdSpec]) -> IdSpec:
    first, *rest = found
    for spec in rest:
        first += spec
    return first


specs = st.lists(parts, min_size=1, max_size=4).map(_sum)

EVENT = b"application/cloudevents+json"
few_names = st.sampled_from(
    ["id", "ID", "other", "ce_id", "CE_ID", "ce_source", "content-type", "Content-Type", ""]
)
some_bytes = st.one_of(
    st.none(),
    st.sampled_from(
        [
            b"",
            b"a",
            b"\x00",
            b"\x00\x00\x00\x00\x07",
            b"\x00\x00\x00\x00\x07a",
            b"\xff5",
            b'{"id": "a"}',
            b'{"id": 5}',
            b"x" * 55,
            b"x" * 56,
        ]
    ),
    st.sampled_from(
        [
            EVENT,
            EVENT.upper() + b";x",
            EVENT + b"x",
            b'{"id": "a", "source": "\\u0000"}',
            b'{"id": 5, "source": ""}',
        ]
    ),
    st.sampled_from([b"x" * (LIMIT - 1), b"x" * LIMIT, b"x" * (LIMIT + 1)]),
    st.binary(max_size=80),
)
headers = st.one_of(
    st.tuples(st.tuples(st.just("id"), some_bytes)),
    st.lists(st.tuples(few_names, some_bytes), max_size=5),
    st.just(()),
)
records = st.builds(
    Record, st.just("t"), st.just(0), st.integers(0, 9), st.just(-1), some_bytes, some_bytes, headers
)
judged_specs = st.lists(
    st.sampled_from(["header:id", "header:other", "key", "unframed-key", "value", "cloudevents"]).map(
        id_spec
    ),
    min_size=1,
    max_size=3,
).map(_sum)


@given(specs)
def test_text_round_trip(spec: IdSpec) -> None:
    """Every spec has one printable line of text, which reads back to an equal spec with the same text."""
    text = str(spec)
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert id_spec(text) == spec
    assert hash(id_spec(text)) == hash(spec)
    assert str(id_spec(text)) == text


@given(specs, specs)
def test_text_is_injective(one: IdSpec, other: IdSpec) -> None:
    """Two specs have the same text only if they are equal, and the text of a sum joins the texts."""
    assert (str(one) == str(other)) == (one == other)
    assert str(one + other) == f"{one}+{other}"


@given(st.text())
def test_any_text_is_a_spec_or_one_line(text: str) -> None:
    """Any text at all is a spec, or an `IdSpecError` of one line."""
    try:
        spec = id_spec(text)
    except IdSpecError as error:
        lines = str(error).splitlines()
    else:
        lines = [str(spec)]
        assert id_spec(str(spec)) == spec
    assert len(lines) == 1


@given(st.lists(st.binary(max_size=5), min_size=2, max_size=4), st.data())
def test_join_is_injective(found: list[bytes], data: st.DataObject) -> None:
    """Moving bytes from one part to its neighbour, or changing any, gives another digest."""
    whole = b"".join(found)
    cuts = sorted(
        data.draw(st.lists(st.integers(0, len(whole)), min_size=len(found) - 1, max_size=len(found) - 1))
    )
    other = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert (digest_parts(found) == digest_parts(other)) == (found == other)


def _last(pairs: type_headers, name: str, *, ignore_case: bool = False) -> bytes | None:
    found = None
    for each, value in pairs:
        if each == name or (ignore_case and each.lower() == name):
            found = value
    return found


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _attribute(value: bytes | None, name: str) -> tuple[bytes | None, str]:
    """Return the bytes of a member of an event and, where there are none, the reason."""
    if value is None:
        return None, "absent"
    try:
        event = json.loads(value.decode(), parse_constant=_refuse)
    except ValueError:
        return None, "malformed"
    found = event.get(name) if isinstance(event, dict) else None
    if isinstance(found, int) and not isinstance(found, bool):
        return b"\xff%d" % found, ""
    if isinstance(found, str):
        return found.encode() or None, "empty"
    return None, "absent" if found is None else "not-scalar"


def _part(name: str, record: Record) -> list[tuple[bytes | None, str]]:
    """Return the bytes and, where there are none, the reason, of each column of one part."""
    if name == "cloudevents":
        content_type = _last(record.headers, "content-type", ignore_case=True)
        if content_type is not None and content_type.split(b";")[0].strip().lower() == EVENT:
            return [_attribute(record.value, each) for each in ("id", "source")]
        pair = [_last(record.headers, each, ignore_case=True) for each in ("ce_id", "ce_source")]
        return [(value or None, "empty" if value == b"" else "absent") for value in pair]
    if name == "unframed-key":
        framed = record.key is not None and len(record.key) >= 6 and record.key.startswith(b"\0")
        return [
            (record.key[5:], "")
            if framed and record.key
            else (None, "malformed" if record.key is not None else "absent")
        ]
    value = {"key": record.key, "value": record.value}.get(name) if ":" not in name else None
    if name.startswith("header:"):
        value = _last(record.headers, name.removeprefix("header:"))
    return [(value, "absent")]


def _reference(spec: IdSpec, record: Record) -> tuple[bytes | None, str | None]:
    """One record at a time, from the words of the documentation."""
    found = [column for name in str(spec).split("+") for column in _part(name, record)]
    message = b""
    size = 0
    for index, (data, reason) in enumerate(found):
        if data is None:
            return None, reason
        size += len(data)
        message += data if index == len(found) - 1 else len(data).to_bytes(4, "big") + data
    if size > LIMIT:
        return None, "oversized"
    return hashlib.sha256(message).digest()[:16], None


@given(st.sampled_from(["header:id", "header:id+key", "key"]).map(id_spec), headers, st.booleans())
def test_the_quick_reader_answers_as_the_columns_or_not_at_all(
    spec: IdSpec,
    pairs: type_headers,
    redriven: bool,  # noqa: FBT001 (drawn)
) -> None:
    """It reads one record's digest from its headers, where that header is the ID and nothing is in doubt."""
    if redriven:
        pairs = (*pairs, (REDRIVE_HEADER, redrive_value("g", "t", 0, 7, 0)))
    keys = GroupKeys(spec, "g")
    read = keys.digest_reader()
    assert (read is None) == (str(spec) != "header:id")
    if read is not None:
        [expected] = keys.digests(RecordFields([Record("t", 0, 0, -1, None, None, pairs)])).digests
        assert read(pairs) == (None if redriven else expected)


@given(judged_specs, st.lists(records, max_size=6))
def test_columns_answer_as_single_records(spec: IdSpec, batch: list[Record]) -> None:
    """Whatever a batch holds, its IDs and reasons are those of its records, judged one by one by plain code."""
    digests, missing = spec.digests(RecordFields(batch))
    expected = [_reference(spec, record) for record in batch]
    assert digests == [digest for digest, _ in expected]
    assert missing == {index: reason for index, (_, reason) in enumerate(expected) if reason is not None}


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.one_of(
        st.binary(),
        st.text().map(lambda text: text.encode("utf-8", "surrogatepass")),
        documents.map(lambda document: json.dumps({"id": document}).encode()),
        documents.map(lambda document: json.dumps({"id": document}).encode()[:-1]),
    )
)
def test_no_value_raises(value: bytes) -> None:
    """Whatever a value holds, it has an ID or a reason why not."""
    digests, missing = id_spec("json:/id").digests(RecordFields([Record("t", 0, 0, value=value)]))
    assert (digests[0] is None) == (0 in missing)


@given(
    st.lists(
        st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-(2**63), 2**63 - 1)),
        max_size=8,
    )
)
def test_json_scalars_are_told_apart(scalars: list[str | int]) -> None:
    """Strings and integers that differ, in value or in type, have different IDs; equal ones have the same."""
    batch = [Record("t", 0, 0, value=json.dumps({"id": scalar}).encode()) for scalar in scalars]
    digests, missing = id_spec("json:/id").digests(RecordFields(batch))
    assert not missing
    assert len(set(digests)) == len({(type(scalar), scalar) for scalar in scalars})
