"""The parts of an ID spec; each is a value that reads its columns."""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids.digest import Column
from dedup_sdk.ids.fields import ReadOnce
from dedup_sdk.ids.json_value import NoIdError, Tokens, pointer_tokens, read_json, resolve, scalar_column

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dedup_sdk.ids.fields import Fields, Need
    from dedup_sdk.record import Record

_SURROGATE = re.compile("[\ud800-\udfff]")
_ATTRIBUTES: Final = {"ce_id": "id", "ce_source": "source"}
"""The attributes that identify an event: header and member."""
_STRUCTURED: Final = b"application/cloudevents+json"

Kind = Literal["header", "cloudevents", "key", "value", "json", "py"]


class Leaf(NamedTuple):
    """One column of bytes of an ID, as data, from which a Spark column expression is built.

    ``argument`` is a header's name (of several the last counts), an event's attribute, a JSON pointer, or ``module:callable``; empty for
    ``key`` and ``value``.
    """

    kind: Kind
    argument: str = ""


class Part(Protocol):
    """One part of a spec, a hashable value; ``name`` and ``argument`` are its text, unescaped."""

    @property
    def name(self) -> str:
        """The word before the colon."""

    @property
    def argument(self) -> str:
        """What follows the colon; empty where there is none."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """The columns it reads."""

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The columns of bytes it contributes, in order."""

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return one column for each leaf."""


@dataclass(frozen=True, slots=True)
class HeaderPart:
    """The value of the last header of exactly this name."""

    argument: str
    name: str = field(default="header", init=False)
    needs: tuple[Need, ...] = field(default=("headers",), init=False)

    def __post_init__(self) -> None:
        """Refuse an impossible header name."""
        if not self.argument or not _is_text(self.argument):
            raise IdSpecError(f"header name {self.argument!r} names no header; write e.g. header:dedup-id")

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The header."""
        return (Leaf("header", self.argument),)

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return the header's values."""
        return (Column(ReadOnce.of(fields).header(self.argument)),)


@dataclass(frozen=True, slots=True)
class CloudEventsPart:
    """An event's ``id``, then its ``source``, which identify it (CloudEvents 1.0, section 3.1.1, and its Kafka binding).

    In structured mode (the header ``content-type`` is ``application/cloudevents+json``) they are members of the value, a JSON object;
    else the headers ``ce_id`` and ``ce_source``. Header names are compared case aside. Both must be there and not empty, else the record has no ID.
    """

    argument: str = field(default="", init=False)
    name: str = field(default="cloudevents", init=False)
    needs: tuple[Need, ...] = field(default=("headers", "value"), init=False)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The two attributes, by the names of their headers."""
        return tuple(Leaf("cloudevents", name) for name in _ATTRIBUTES)

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return both attributes; values are read only where there is an event in structured mode."""
        by_name = [{name.lower(): value for name, value in pairs or ()} for pairs in fields.headers()]
        structured = [row for row, values in enumerate(by_name) if _is_structured(values.get("content-type"))]
        contents = fields.values() if structured else ()
        events = [_event(contents[row]) for row in structured]
        columns = []
        for header, member in _ATTRIBUTES.items():
            values = [each.get(header) for each in by_name]
            found = scalar_column(partial(_member, member), events)
            for row, value in zip(structured, found.values, strict=True):
                values[row] = value
            why = {structured[at]: reason for at, reason in found.reasons.items()}
            columns.append(_not_empty(values, why))
        return columns


@dataclass(frozen=True, slots=True)
class FieldPart:
    """The record's key, or its whole value: a last resort, because two messages with equal content are then one."""

    name: Literal["key", "value"]
    argument: str = field(default="", init=False)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The field's column."""
        return (self.name,)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The field."""
        return (Leaf(self.name),)

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return the keys or the values."""
        return (Column(fields.keys() if self.name == "key" else fields.values()),)


@dataclass(frozen=True, slots=True)
class JsonPart:
    """The string or signed 64-bit integer at a JSON pointer in the record's value."""

    argument: str
    name: str = field(default="json", init=False)
    needs: tuple[Need, ...] = field(default=("value",), init=False)
    tokens: Tokens = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a wrong pointer."""
        if not _is_text(self.argument):
            raise IdSpecError(f"json pointer {self.argument!r} is no text; write e.g. json:/order/id")
        object.__setattr__(self, "tokens", pointer_tokens(self.argument))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The pointer."""
        return (Leaf("json", self.argument),)

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return the bytes of the values at the pointer."""
        return (scalar_column(self._read, fields.values()),)

    def _read(self, value: bytes | None) -> object:
        return None if value is None else resolve(read_json(value), self.tokens)


@dataclass(frozen=True, slots=True)
class PyPart:
    """The result of a user's callable for a `Record`: ``str | int | None``; ``argument`` is its path and version, ``module:callable@2``."""

    argument: str
    name: str = field(default="py", init=False)
    needs: tuple[Need, ...] = field(default=("record",), init=False)
    call: Callable[[Record], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Import the callable."""
        object.__setattr__(self, "call", _import(self.argument, _path(self.argument)))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The callable's path."""
        return (Leaf("py", self.argument),)

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return the bytes of the callable's results; a record for which it raises has no ID."""
        return (scalar_column(self._read, fields.records()),)

    def _read(self, record: Record) -> object:
        try:
            return self.call(record)
        except Exception:  # noqa: BLE001 (the user's code; whatever it raises, the record is delivered)
            raise NoIdError("failed") from None


def _is_text(text: object) -> bool:
    """Whether it is a string with a UTF-8 form (no lone surrogate)."""
    return isinstance(text, str) and not _SURROGATE.search(text)


def _not_empty(values: Sequence[bytes | None], reasons: dict[int, str]) -> Column:
    """Return a column in which empty values are missing, too; ``reasons`` are those of the missing ones."""
    empty = {index: "empty" for index, value in enumerate(values) if value is not None and not value}
    return Column([value or None for value in values], reasons | empty)


def _is_structured(content_type: bytes | None) -> bool:
    """Whether a content type (with parameters, in any case) is that of an event in JSON."""
    return content_type is not None and content_type.partition(b";")[0].strip().lower() == _STRUCTURED


def _event(value: bytes | None) -> object:
    """Return the JSON document, or the error that says why there is none."""
    try:
        return None if value is None else read_json(value)
    except NoIdError as error:
        return error


def _member(name: str, event: object) -> object:
    if isinstance(event, NoIdError):
        raise event
    return event.get(name) if isinstance(event, dict) else None


def _path(argument: object) -> object:
    """Return the path of ``module:callable@version``; `_import` refuses anything but text."""
    if not isinstance(argument, str):
        return argument
    path, _, version = argument.rpartition("@")
    if not path or not version.strip():
        raise IdSpecError(
            f'py:{argument} has no version; write e.g. py:{argument.rstrip("@")}@1, or py({argument.rstrip("@")!r}, version="1"), and another '
            "version whenever the callable returns other IDs: code has no other identity, and marks made by other code do not count"
        )
    return path


def _import(argument: object, path: object) -> Callable[[Record], object]:
    if not isinstance(path, str) or path.count(":") != 1:
        raise IdSpecError(f"py path {argument!r} names no callable; write e.g. py:shop.ids:order_id@1")
    try:
        found: object = pkgutil.resolve_name(path)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise IdSpecError(
            f"py:{argument} cannot be imported ({cause}); write py:MODULE:CALLABLE@VERSION, the module on sys.path"
        ) from error
    if not callable(found):
        raise IdSpecError(
            f"py:{argument} is {type(found).__name__}, not a callable; name a function of one Record"
        )
    return found
