"""Specs written in Python: the argument stands for itself, nothing is escaped."""

from __future__ import annotations

from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids.parts import CloudEventsPart, HeaderPart, JsonPart, KeyPart, PyPart, ValuePart
from dedup_sdk.ids.spec import IdSpec


def header(name: str) -> IdSpec:
    """Return the spec of the last header of exactly this name; an empty value is an ID, null or absent is none."""
    return IdSpec((HeaderPart(name),))


def key() -> IdSpec:
    """Return the spec of the record's key; an empty key is an ID, null is none."""
    return IdSpec((KeyPart(),))


def json(pointer: str) -> IdSpec:
    """Return the spec of what a JSON pointer (RFC 6901) such as ``/order/id`` leads to in the record's value.

    Strings and signed 64-bit integers are IDs, and ``"5"`` is another ID than ``5``.
    """
    return IdSpec((JsonPart(pointer),))


def cloudevents() -> IdSpec:
    """Return the spec of a CloudEvent, in binary or structured mode: its ``id`` with its ``source``, neither of them empty."""
    return IdSpec((CloudEventsPart(),))


def value() -> IdSpec:
    """Return the spec of the record's whole value: a last resort.

    A body is no dedup key: two messages may be equal and both be meant, and a resend may be written differently.
    """
    return IdSpec((ValuePart(),))


def py(path: str, *, version: str) -> IdSpec:
    """Return the spec of what ``module:callable`` returns for a `Record`: ``str``, ``int`` (signed, 64 bits) or None.

    ``version`` belongs to the spec: give another one whenever the callable returns other IDs, or for other records. A record for which it
    raises, or returns anything else, has no ID. Raises `IdSpecError` when it cannot be imported, or the version is empty or no text.
    """
    given: object = version  # what callers without a type checker pass
    if not isinstance(given, str) or not given or "@" in given or given != given.strip():
        raise IdSpecError(
            f'py({path!r}) has the version {given!r}; write a text without @ and without blanks around it, e.g. version="1"'
        )
    return IdSpec((PyPart(f"{path}@{version}"),))
