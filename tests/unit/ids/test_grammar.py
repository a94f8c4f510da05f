from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest

from dedup_sdk import ids
from dedup_sdk.errors import ConfigurationError, IdSpecError
from dedup_sdk.ids import IdSpec, Leaf, id_spec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("header:dedup-id", ids.header("dedup-id")),
        ("header:a:b", ids.header("a:b")),
        ("key", ids.key()),
        ("value", ids.value()),
        ("cloudevents", ids.cloudevents()),
        ("unframed-key", ids.unframed_key()),
        ("json:/order/id", ids.json("/order/id")),
        ("json:/a~1b/m~0n/", ids.json("/a~1b/m~0n/")),
        ("py:tests.unit.ids.callables:answer@2", ids.py("tests.unit.ids.callables:answer", version="2")),
        (
            "py:tests.unit.ids.callables:Orders.offset@1",
            ids.py("tests.unit.ids.callables:Orders.offset", version="1"),
        ),
        ("header:tenant+json:/id+key", ids.header("tenant") + ids.json("/id") + ids.key()),
        ("header:a%2Bb", ids.header("a+b")),
        ("header:100%25", ids.header("100%")),
        ("header:caf%C3%A9", ids.header("café")),
        ("header:%20x%0Ay%20", ids.header(" x\ny ")),
    ],
)
def test_text_and_builder_agree(text: str, spec: IdSpec) -> None:
    """Each form can be written as text and in Python; both give equal specs, whose text is the canonical one."""
    assert id_spec(text) == spec
    assert hash(id_spec(text)) == hash(spec)
    assert str(spec) == text
    assert repr(spec) == f"id_spec({text!r})"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (" header:a + key ", "header:a+key"),
        ("header:café", "header:caf%C3%A9"),
        ("header:a%2bb", "header:a%2Bb"),
        ("header:%61", "header:a"),
        ("header:a b", "header:a%20b"),
        ("json:/a+key", "json:/a+key"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    """However a spec is written, it has one canonical text: stores compare it."""
    assert str(id_spec(text)) == canonical
    assert id_spec(canonical) == id_spec(text)


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            " ",
            "+",
            "key+",
            "+key",
            "key++value",
            "header",
            "header:",
            "header: ",
            "json",
            "json:",
            "json:id",
        ],
        *[
            "json:/a~2",
            "json:/a~",
            "json:#/a",
            "py",
            "py:",
            "py:math",
            "py:math:",
            "py::f@1",
            "py:math:nope@1",
        ],
        *[
            "py:no.such.module:f@1",
            "py:math:pi@1",
            "py:a b:c@1",
            "py:math:sin:cos@1",
            "py:math:sin",
            "py:math:sin@",
            "key:",
            "key:x",
            "value:x",
        ],
        *["cloudevents:", "Key", "HEADER:x", "headers:x", "header:50%", "header:%zz", "header:%FF"],
        *["offset", "topic", "partition", "timestamp", "topic+partition+offset"],
        *["header:%ED%A0%80", "header:a+b", "dedup-id"],
    ],
)
def test_wrong_text(text: str) -> None:
    """A text that is no spec ends in one line which names the text (or its part) and the text to write."""
    with pytest.raises(IdSpecError) as caught:
        id_spec(text)
    message = str(caught.value)
    assert "\n" not in message
    assert "write" in message or "name a function" in message
    argument = text.partition(":")[2]
    assert repr(text) in message or argument in message


@pytest.mark.parametrize("wrong", [None, 5, b"key", ["key"], ("key",)])
def test_wrong_type(wrong: object) -> None:
    """A value that is neither a text nor a spec is refused by its value, as a wrong setting."""
    with pytest.raises(ConfigurationError, match=r"id spec .* is .*; write header:NAME"):
        id_spec(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", None, 5, b"x", "\ud800"])
def test_wrong_header_name(name: str) -> None:
    """A builder refuses a name that no Kafka header can have."""
    with pytest.raises(IdSpecError, match=r"is not a text with characters; write e\.g\."):
        ids.header(name)


@pytest.mark.parametrize("pointer", ["", "id", None, 5, b"/x", "/\ud800"])
def test_wrong_pointer(pointer: str) -> None:
    """A builder refuses a text that is no JSON pointer, and the empty one, which is the whole document."""
    with pytest.raises(IdSpecError, match=r"json pointer .* e\.g\. json:/order/id"):
        ids.json(pointer)


def test_broken_module_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that fails while it is imported is a wrong setting, said in one line with the cause."""
    (tmp_path / "broken_ids.py").write_text("raise RuntimeError('first line\\nsecond line')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(IdSpecError) as caught:
        ids.py("broken_ids:f", version="1")
    assert str(caught.value).startswith("py:broken_ids:f@1 cannot be imported (RuntimeError: first line);")
    assert "\n" not in str(caught.value)


def test_a_callable_has_a_version() -> None:
    """The version belongs to the identity of the spec, and a spec without one gives the text to write."""
    path = "tests.unit.ids.callables:answer"
    assert ids.py(path, version="1") != ids.py(path, version="2")
    assert id_spec(str(ids.py(path, version="a b%+"))) == ids.py(path, version="a b%+")
    with pytest.raises(IdSpecError, match=rf"py:{path} has no version; write e\.g\. py:{path}@1"):
        id_spec(f"py:{path}")
    for wrong in ("", " 1", "1@2", 1, None):
        with pytest.raises(IdSpecError, match=r'has the version .* e\.g\. version="1"'):
            ids.py(path, version=wrong)  # type: ignore[arg-type]


def test_spec_of_nothing() -> None:
    """A spec has at least one part."""
    with pytest.raises(IdSpecError, match="no parts"):
        IdSpec(())


def test_order_counts() -> None:
    """``a+b`` and ``b+a`` are different specs."""
    assert id_spec("key+value") != id_spec("value+key")


def test_spec_is_returned_as_it_is() -> None:
    """A function that takes a text takes a spec as well."""
    spec = ids.key()
    assert id_spec(spec) is spec


def test_only_specs_can_be_added() -> None:
    """A text is not added by accident: it has to be read first."""
    with pytest.raises(TypeError):
        ids.key() + "value"  # type: ignore[operator]


def test_travels_as_text() -> None:
    """A spec can be copied and pickled (Spark does), also one whose callable could not."""
    spec = id_spec("header:a%2Bb+json:/x+py:tests.unit.ids.callables:GUARDED@1")
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301 (made on this line)
    assert copy.deepcopy(spec) == spec


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("header:a", {"headers"}),
        ("cloudevents", {"headers", "value"}),
        ("key", {"key"}),
        ("value", {"value"}),
        ("json:/a", {"value"}),
        ("py:tests.unit.ids.callables:answer@1", {"record"}),
        ("header:a+header:b+key", {"headers", "key"}),
    ],
)
def test_needs(text: str, needs: set[str]) -> None:
    """A spec says which columns have to be read for it."""
    assert id_spec(text).needs == needs


def test_described_as_data() -> None:
    """A spec can be described as columns of bytes, in the order in which they are hashed."""
    assert id_spec("key+cloudevents+header:a%2Bb+json:/x+value+py:math:sin@1").describe() == (
        Leaf("key"),
        Leaf("cloudevents", "ce_id"),
        Leaf("cloudevents", "ce_source"),
        Leaf("header", "a+b"),
        Leaf("json", "/x"),
        Leaf("value"),
        Leaf("py", "math:sin@1"),
    )
