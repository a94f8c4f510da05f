"""Functions of the program itself as ID specs."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest

from dedup_sdk._cli.stores import candidate_digests
from dedup_sdk._record import Record
from dedup_sdk._strategy import LastId, Lookup
from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids import IdSpec, Leaf, RecordFields, digest_one, function, header, id_spec, key
from dedup_sdk.orders import integer
from tests.unit.ids import callables

ANSWER: Any = callables.answer
PATH = "tests.unit.ids.callables:answer"


def rule(lookup: Lookup | LastId) -> str:
    """Return the fingerprint of a strategy's rule."""
    return lookup.terms(lookup.window_of("orders"), digest="", isolation="").rule


def test_it_reads_what_the_imported_one_reads() -> None:
    """Each answer of a function gives the ID, or the reason for none, that it gives where `py:` names it."""
    fields = RecordFields(
        [Record("t", 0, offset, key=name) for offset, name in enumerate((*callables.ANSWERS, b"raises"))]
    )
    ours = function(ANSWER, name="answer", version="1").digests(fields)
    assert ours == id_spec(f"py:{PATH}@1").digests(fields)
    assert ours.missing[len(callables.ANSWERS)] == "failed"


def test_name_and_version_are_part_of_the_rule() -> None:
    """Another version, another function or another way to give it is another rule, wherever the function is used."""

    def of(spec: IdSpec) -> list[str]:
        return [
            rule(Lookup(id=spec, window="7d")),
            rule(Lookup(id=key(), window="7d", unit=spec)),
            rule(LastId(id=spec, order=integer())),
            rule(LastId(id=key(), order=integer(), source=spec)),
        ]

    first = function(ANSWER, name="answer", version="1")
    others = [
        function(ANSWER, name="answer", version="2"),
        function(ANSWER, name="offset", version="1"),
        id_spec(f"py:{PATH}@1"),
    ]
    assert of(first) == of(function(ANSWER, name="answer", version="1"))
    for other in others:
        assert not set(of(first)) & set(of(other)), str(other)


def test_the_text_names_it_and_cannot_be_read() -> None:
    """No other process has the function.

    Its text, as a manifest keeps it, is refused in a line with the remedy.
    """
    spec = header("tenant") + function(ANSWER, name="answer", version="2+")
    assert str(spec) == "header:tenant+function:answer@2%2B"
    assert repr(spec) == f"id_spec({str(spec)!r})"
    assert spec.needs == {"headers", "record"}
    assert spec.describe()[1:] == (Leaf("function", "answer@2+"),)
    for imports in (True, False):
        with pytest.raises(IdSpecError, match=r"function of the consumer's program, .*needs py:") as caught:
            id_spec(str(spec), imports=imports)
        assert repr(str(spec)) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_command_finds_its_ids() -> None:
    """`dedup lookup` looks a whole number up as a text and as a number, since a function may return both."""
    [text, number] = candidate_digests("function:answer@1", ["5"])
    fields = RecordFields([Record("t", 0, 0, key=b"int")])
    assert number == function(ANSWER, name="answer", version="1").digests(fields).digests[0]
    assert text == digest_one(b"5")


def test_equal_specs_have_equal_functions() -> None:
    """Two functions of one name are two specs; a copy, also a pickled one, is the same."""
    spec = function(ANSWER, name="answer", version="1")
    assert spec == function(ANSWER, name="answer", version="1")
    assert hash(spec) == hash(function(ANSWER, name="answer", version="1"))
    one, two = (function(each, name="n", version="1") for each in (lambda _: 1, lambda _: 2))
    assert str(one) == str(two)
    assert one != two
    assert pickle.loads(pickle.dumps(spec + key())) == spec + key()  # noqa: S301 (made on this line)
    assert copy.deepcopy(one) == one


@pytest.mark.parametrize("given", [ANSWER, callables.GUARDED, partial(ANSWER), Record])
def test_a_function_without_a_version_is_refused(given: Any) -> None:
    """Wherever an ID spec is given: one line shows the text to write."""
    for wrong in (
        lambda: Lookup(id=given, window="7d"),
        lambda: LastId(id=key(), order=integer(), source=given),
    ):
        with pytest.raises(
            IdSpecError,
            match=r'without a name and a version; write dedup_sdk\.ids\.function\(\w+, name="order-id", version="1"\)',
        ) as caught:
            wrong()
        assert "\n" not in str(caught.value)


def test_a_builder_that_was_not_called_is_no_function() -> None:
    """`id=key` is a slip: no version makes it better."""
    with pytest.raises(IdSpecError, match=r"id spec key is a builder that was not called; write .* key\(\)"):
        Lookup(id=key, window="7d")  # type: ignore[arg-type]


async def later(record: Record) -> str:
    """Return nothing in time."""
    return str(record.offset)


class Later:
    """An object that is called, and returns nothing in time."""

    async def __call__(self, record: Record) -> str:
        """See `later`."""
        return str(record.offset)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("shop.ids:order_id", "needs a plain function of one Record; write e.g. function(lambda"),
        (None, "needs a plain function of one Record"),
        (Record, "needs a plain function of one Record"),
        (later, "needs a plain function of one Record"),
        (Later(), "needs a plain function of one Record"),
        (lambda: "x", "cannot be called with one Record, as its arguments are ()"),
        (lambda one, two: (one, two), "cannot be called with one Record"),
    ],
)
def test_anything_but_a_function_of_one_record_is_refused(given: Any, message: str) -> None:
    """In one line, when the spec is made and not with the first record."""
    with pytest.raises(IdSpecError) as caught:
        function(given, name="given", version="1")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("setting", ["name", "version"])
@pytest.mark.parametrize("value", ["", " 1", "1@2", "\ud800", 1, None])
def test_name_and_version_are_texts(setting: str, value: Any) -> None:
    """As the version of `py` is."""
    with pytest.raises(IdSpecError, match=rf"answer\) has the {setting} .* e\.g\. {setting}="):
        function(ANSWER, **{"name": "answer", "version": "1", setting: value})
