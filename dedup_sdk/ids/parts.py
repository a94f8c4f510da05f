"""The parts an ID is made of, each a value that knows which columns it reads and how."""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast

from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids.digest import Column
from dedup_sdk.ids.pointer import Tokens, pointer_tokens, resolve
from dedup_sdk.ids.scalar import NoIdError, scalar_column
from dedup_sdk.ids.strict_json import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dedup_sdk.ids.fields import Fields, Headers, Need
    from dedup_sdk.record import Record

_SURROGATE = re.compile("[\ud800-\udfff]")

Kind = Literal["header", "key", "value", "json", "py"]


class Leaf(NamedTuple):
    """One column of bytes of an ID, as data: what a Spark column expression is built from.

    ``argument`` is a header's name, a JSON pointer, or ``module:callable``; empty for ``key`` and ``value``. Of several
    headers whose name is ``argument`` (with ``ignore_case``: case aside) the last counts. ``empty_is_id`` says whether
    an empty value is an ID.
    """

    kind: Kind
    argument: str = ""
    ignore_case: bool = False
    empty_is_id: bool = True


class Part(Protocol):
    """One part of a spec, a hashable value; ``name`` and ``argument`` are its text, unescaped."""

    @property
    def name(self) -> str:
        """The word before the colon."""

    @property
    def argument(self) -> str:
        """What follows the colon; empty where there is none."""

    @property
    def need(self) -> Need:
        """The column it reads."""

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
    need: Need = field(default="headers", init=False)

    def __post_init__(self) -> None:
        """Refuse a name that no Kafka header can have."""
        if not self.argument or not _is_text(self.argument):
            raise IdSpecError(f"header name {self.argument!r} names no header; write e.g. header:dedup-id")

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The header."""
        return (Leaf("header", self.argument),)

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return the header's values.

        Most records have one header, or all of a batch have the same few: first the shape that costs next to nothing,
        then a dictionary, in which the last of several wins as well.
        """
        wanted = self.argument
        headers = fields.headers()
        try:
            values = [value for [(name, value)] in cast("list[Headers]", headers) if name == wanted]
        except (TypeError, ValueError):
            values = []
        if len(values) != len(headers):
            values = [dict(pairs or ()).get(wanted) for pairs in headers]
        return (Column(values),)


@dataclass(frozen=True, slots=True)
class CloudEventsPart:
    """``ce_id``, then ``ce_source``: what identifies an event (CloudEvents 1.0, section 3.1.1; binary mode in Kafka).

    Header names are compared case aside. Both must be there and not empty, else the record has no ID; an event in
    structured mode, whose attributes are in the value, has none either.
    """

    argument: str = field(default="", init=False)
    name: str = field(default="cloudevents", init=False)
    need: Need = field(default="headers", init=False)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The two headers."""
        return tuple(
            Leaf("header", name, ignore_case=True, empty_is_id=False) for name in ("ce_id", "ce_source")
        )

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return the values of both headers."""
        by_name = [{name.lower(): value for name, value in pairs or ()} for pairs in fields.headers()]
        return tuple(_not_empty([values.get(leaf.argument) for values in by_name]) for leaf in self.leaves)


@dataclass(frozen=True, slots=True)
class KeyPart:
    """The record's key."""

    argument: str = field(default="", init=False)
    name: str = field(default="key", init=False)
    need: Need = field(default="key", init=False)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The key."""
        return (Leaf("key"),)

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return the keys."""
        return (Column(fields.keys()),)


@dataclass(frozen=True, slots=True)
class ValuePart:
    """The record's whole value: a last resort, for two messages of equal content are then one."""

    argument: str = field(default="", init=False)
    name: str = field(default="value", init=False)
    need: Need = field(default="value", init=False)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The value."""
        return (Leaf("value"),)

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return the values."""
        return (Column(fields.values()),)


@dataclass(frozen=True, slots=True)
class JsonPart:
    """What a JSON pointer leads to in the record's value: a string, or a signed 64-bit integer."""

    argument: str
    name: str = field(default="json", init=False)
    need: Need = field(default="value", init=False)
    tokens: Tokens = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what is no pointer."""
        if not _is_text(self.argument):
            raise IdSpecError(f"json pointer {self.argument!r} is no text; write e.g. json:/order/id")
        object.__setattr__(self, "tokens", pointer_tokens(self.argument))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The pointer."""
        return (Leaf("json", self.argument),)

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return the bytes of what the pointer leads to."""
        return (scalar_column(self._read, fields.values()),)

    def _read(self, value: bytes | None) -> object:
        return None if value is None else resolve(read_json(value), self.tokens)


@dataclass(frozen=True, slots=True)
class PyPart:
    """What a callable of the user returns for a `Record`: ``str | int | None``."""

    argument: str
    name: str = field(default="py", init=False)
    need: Need = field(default="record", init=False)
    call: Callable[[Record], object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Import the callable."""
        object.__setattr__(self, "call", _import(self.argument))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The callable's path."""
        return (Leaf("py", self.argument),)

    def columns(self, fields: Fields) -> Sequence[Column]:
        """Return the bytes of what the callable returns; a record for which it raises has no ID."""
        return (scalar_column(self._read, fields.records()),)

    def _read(self, record: Record) -> object:
        try:
            return self.call(record)
        except Exception:  # noqa: BLE001 (the user's code; whatever it raises, the record is delivered)
            raise NoIdError("failed") from None


def _is_text(text: object) -> bool:
    """Whether it is a string with a UTF-8 form (no lone surrogate)."""
    return isinstance(text, str) and not _SURROGATE.search(text)


def _not_empty(values: Sequence[bytes | None]) -> Column:
    reasons = {index: "empty" for index, value in enumerate(values) if value is not None and not value}
    return Column([value or None for value in values], reasons)


def _import(path: object) -> Callable[[Record], object]:
    if not isinstance(path, str) or path.count(":") != 1:
        raise IdSpecError(f"py path {path!r} names no callable; write e.g. py:shop.ids:order_id")
    try:
        found: object = pkgutil.resolve_name(path)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise IdSpecError(
            f"py:{path} cannot be imported ({cause}); write py:MODULE:CALLABLE, the module on sys.path"
        ) from error
    if not callable(found):
        raise IdSpecError(
            f"py:{path} is {type(found).__name__}, not a callable; name a function of one Record"
        )
    return found
