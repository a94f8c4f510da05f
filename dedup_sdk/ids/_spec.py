"""The ID spec: which bytes of a record name the logical message; its text, and the functions that build one.

A text is made of parts, joined by ``+``:

    spec  = part *( "+" part )
    part  = "header:" NAME | "key" | "unframed-key" | "json:" POINTER | "cloudevents" | "value"
          | "py:" MODULE ":" CALLABLE "@" VERSION

In an argument ``%XX`` is a byte of its UTF-8 form, so that a literal ``+`` is written ``%2B`` and a literal ``%`` is
``%25``; all else stands for itself. Blanks around a part do not count. The canonical text also escapes what is blank,
control or not ASCII, so that it stays one printable line, and the same under every version of Unicode.

A builder's argument stands for itself: nothing in it is escaped.

The part of a Python function, ``function:NAME@VERSION``, has a canonical text, which identifies it in stores,
but cannot be read: no other process has the function.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import string
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, Protocol, TypeGuard
from urllib.parse import quote, unquote

from dedup_sdk._checks import unfit_arguments
from dedup_sdk._interruptions import is_interruption
from dedup_sdk._masking import error_shown, one_line, shown
from dedup_sdk._record import Record
from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids._columns import (
    MAX_ID_BYTES,
    Column,
    FailedCall,
    Fields,
    Headers,
    Ids,
    Need,
    ReadOnce,
    digest_columns,
    digest_one,
)
from dedup_sdk.ids._json_value import NoIdError, Tokens, pointer_tokens, read_json, resolve, scalar_column
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_prefix, redriven_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# --- the parts of a spec: each is a value that reads its columns

_SURROGATE = re.compile("[\ud800-\udfff]")
_ATTRIBUTES: Final = {"ce_id": "id", "ce_source": "source"}
"""The attributes that identify an event: header and member."""
_STRUCTURED: Final = b"application/cloudevents+json"

Kind = Literal["header", "cloudevents", "key", "unframed-key", "value", "json", "py", "function"]

FRAMING_BYTES: Final = 5
"""What the serializer of a schema registry writes in front: a zero byte, and the schema's ID, 4 bytes big-endian."""


class Leaf(NamedTuple):
    """One column of bytes of an ID, as data, from which a Spark column expression is built.

    ``argument`` is a header's name (of several the last counts), an event's attribute, a JSON pointer, or
    ``module:callable@version``; empty for ``key``, ``unframed-key`` and ``value``.
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

    def columns(self, fields: ReadOnce) -> Sequence[Column]:
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
            raise IdSpecError(
                f"header name {shown(self.argument)} is not a text with characters; write e.g. header('dedup-id')"
            )

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The header."""
        return (Leaf("header", self.argument),)

    def columns(self, fields: ReadOnce) -> Sequence[Column]:
        """Return the header's values."""
        return (Column(fields.header(self.argument)),)


@dataclass(frozen=True, slots=True)
class CloudEventsPart:
    """An event's ``id``, then its ``source``, which identify it.

    See CloudEvents 1.0, section 3.1.1, and its Kafka binding. In structured mode (the header
    ``content-type`` is ``application/cloudevents+json``) they are members of the value, a JSON object; else
    the headers ``ce_id`` and ``ce_source``. Header names are case-insensitive. Both must exist and not be
    empty, else the record has no ID.
    """

    argument: str = field(default="", init=False)
    name: str = field(default="cloudevents", init=False)
    needs: tuple[Need, ...] = field(default=("headers", "value"), init=False)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The two attributes, by the names of their headers."""
        return tuple(Leaf("cloudevents", name) for name in _ATTRIBUTES)

    def columns(self, fields: ReadOnce) -> Sequence[Column]:
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

    def columns(self, fields: ReadOnce) -> Sequence[Column]:
        """Return the keys or the values."""
        return (Column(fields.keys() if self.name == "key" else fields.values()),)


@dataclass(frozen=True, slots=True)
class UnframedKeyPart:
    """The record's key behind the framing of a schema registry, so that the ID does not change with the schema.

    A key without the framing has no ID: to cut a key of other bytes could make one ID of two.
    """

    argument: str = field(default="", init=False)
    name: str = field(default="unframed-key", init=False)
    needs: tuple[Need, ...] = field(default=("key",), init=False)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The key without the framing."""
        return (Leaf("unframed-key"),)

    def columns(self, fields: ReadOnce) -> Sequence[Column]:
        """Return what follows the framing of each key."""
        keys = fields.keys()
        reasons = {
            row: "malformed" for row, each in enumerate(keys) if each is not None and not is_framed(each)
        }
        return (Column([each[FRAMING_BYTES:] if is_framed(each) else None for each in keys], reasons),)


def is_framed(content: bytes | None) -> TypeGuard[bytes]:
    """Whether a key or a value may begin with the framing of a schema registry."""
    return content is not None and len(content) > FRAMING_BYTES and not content[0]


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
            raise IdSpecError(f"json pointer {shown(self.argument)} is no text; write e.g. json:/order/id")
        object.__setattr__(self, "tokens", pointer_tokens(self.argument))

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The pointer."""
        return (Leaf("json", self.argument),)

    def columns(self, fields: ReadOnce) -> Sequence[Column]:
        """Return the bytes of the values at the pointer."""
        return (scalar_column(self._read, fields.values()),)

    def _read(self, value: bytes | None) -> object:
        return None if value is None else resolve(read_json(value), self.tokens)


@dataclass(frozen=True, slots=True)
class PyPart:
    """The result of a user's callable for a `Record`: ``str | int | None``.

    ``argument`` is its path and version, ``module:callable@2``.
    """

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

    def columns(self, fields: ReadOnce) -> Sequence[Column]:
        """Return the bytes of the callable's results; a record for which it raises has no ID."""
        return (_results(self.call, fields),)


@dataclass(frozen=True, slots=True)
class FunctionPart:
    """The result of a function of this program for a `Record`: ``str | int | None``.

    ``argument`` is the name that the user gave it, and its version: ``orders.id@2``. Nothing imports it.
    """

    argument: str
    call: Callable[[Record], object] = field(repr=False, hash=False)
    name: str = field(default="function", init=False)
    needs: tuple[Need, ...] = field(default=("record",), init=False)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The function's name."""
        return (Leaf("function", self.argument),)

    def columns(self, fields: ReadOnce) -> Sequence[Column]:
        """Return the bytes of the function's results; a record for which it raises has no ID."""
        return (_results(self.call, fields),)


def _results(call: Callable[[Record], object], fields: ReadOnce) -> Column:
    def read(record: Record) -> object:
        try:
            return call(record)
        except Exception as error:
            # The user's code: whatever it raises, the record is delivered. A signal says nothing about the record.
            if is_interruption(error):
                raise
            if record.topic not in fields.failures:
                fields.note_failure(record.topic, _failed_call(call, record, error))
            raise NoIdError("failed") from None

    return scalar_column(read, fields.records())


def _failed_call(call: Callable[[Record], object], record: Record, error: Exception) -> FailedCall:
    try:
        function = one_line(str(call.__name__))
    except Exception:  # noqa: BLE001 (the user's object)
        function = "the function"
    # The first frame is the caller's; there is no other one for a function written in C.
    inside = error.__traceback__.tb_next if error.__traceback__ is not None else None
    if inside is not None:
        function += f" ({PurePath(inside.tb_frame.f_code.co_filename).name}:{inside.tb_lineno})"
    return FailedCall(f"{record.topic}[{record.partition}]@{record.offset}", function, error_shown(error))


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


_ANOTHER_VERSION: Final = (
    "and another version whenever it returns other IDs: stored IDs count only for the version that made them"
)


def _path(argument: object) -> object:
    """Return the path of ``module:callable@version``; `_import` refuses anything but text."""
    if not isinstance(argument, str):
        return argument
    path, _, version = argument.rpartition("@")
    if not path or not version.strip():
        raise IdSpecError(
            f"py:{argument} has no version; write e.g. py:{argument.rstrip('@')}@1, or "
            f'py({shown(argument.rstrip("@"))}, version="1"), {_ANOTHER_VERSION}'
        )
    return path


def _import(argument: object, path: object) -> Callable[[Record], object]:
    if not isinstance(path, str) or path.count(":") != 1:
        raise IdSpecError(f"py path {shown(argument)} names no callable; write e.g. py:shop.ids:order_id@1")
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


# --- the text of a spec, and its builders

FORMS = (
    "header:NAME, key, unframed-key, json:/POINTER, cloudevents, value or py:MODULE:CALLABLE@VERSION; "
    "join several by + (a literal + is %2B)"
)

_WITH_ARGUMENT: dict[str, Callable[[str], Part]] = {"header": HeaderPart, "json": JsonPart, "py": PyPart}
_ALONE: dict[str, Callable[[], Part]] = {
    "key": partial(FieldPart, "key"),
    "unframed-key": UnframedKeyPart,
    "cloudevents": CloudEventsPart,
    "value": partial(FieldPart, "value"),
}
_STRAY_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_STANDS_FOR_ITSELF = "".join(sorted(set(string.punctuation) - set("+%")))


def parse_parts(text: str, *, imports: bool = True) -> tuple[Part, ...]:
    """Read the text of a spec; raises `IdSpecError` that names the text and the accepted forms."""
    return tuple(_parse_part(part.strip(), text, imports=imports) for part in text.split("+"))


def format_parts(parts: Sequence[Part]) -> str:
    """Return the canonical text, which `parse_parts` reads back."""
    texts = []
    for part in parts:
        argument = quote(part.argument, safe=_STANDS_FOR_ITSELF)
        texts.append(f"{part.name}:{argument}" if argument else part.name)
    return "+".join(texts)


def _parse_part(part: str, text: str, *, imports: bool) -> Part:
    name, colon, argument = part.partition(":")
    if name == "py" and not imports:
        raise IdSpecError(
            f"id spec {shown(text)} names code, which is imported only where the user gives the spec; give it yourself"
        )
    if name == "function":
        raise IdSpecError(
            f"id spec {shown(text)} names a function of the consumer's program, which no other process can call: a "
            "rebuild needs py:MODULE:CALLABLE@VERSION, here and in the consumer, whose history begins anew with it"
        )
    if not colon and name in _ALONE:
        return _ALONE[name]()
    if not argument or name not in _WITH_ARGUMENT:
        raise IdSpecError(f"id spec {shown(text)}: {shown(part)} has none of the known forms; write {FORMS}")
    if _STRAY_PERCENT.search(argument):
        raise IdSpecError(
            f"id spec {shown(text)}: a % in {shown(part)} is no escape; write a literal % as %25"
        )
    try:
        argument = unquote(argument, errors="strict")
    except UnicodeDecodeError:
        raise IdSpecError(
            f"id spec {shown(text)}: the escapes in {shown(part)} are not UTF-8; write e.g. %C3%A9"
        ) from None
    return _WITH_ARGUMENT[name](argument)


@dataclass(frozen=True, slots=True, repr=False)
class IdSpec:
    """Which bytes of a record are its ID: a hashable value, made by `id_spec` or by a builder such as `header`.

    ``str(spec)`` is its canonical text, which `id_spec` reads back to an equal spec (it is also how a spec is pickled;
    one with a `function` is pickled by that function's own name). ``a + b`` is the spec whose IDs are pairs of both.
    Equal specs give equal digests on every machine.
    Raises `IdSpecError` when made of no parts.
    """

    parts: tuple[Part, ...]
    length_matters: ClassVar[bool] = False
    """Whether marks depend on the length of the window (`dedup_sdk._rule_fingerprint`)."""

    def __post_init__(self) -> None:
        """Refuse an empty spec."""
        if not self.parts:
            raise IdSpecError(f"an id spec of no parts names nothing; write {FORMS}")

    def __str__(self) -> str:
        """The canonical text."""
        return format_parts(self.parts)

    def __repr__(self) -> str:
        return f"id_spec({str(self)!r})"

    def __add__(self, other: IdSpec) -> IdSpec:
        """Return the spec whose IDs consist of both."""
        if not isinstance(other, IdSpec):
            return NotImplemented
        return IdSpec(self.parts + other.parts)

    def __reduce__(self) -> tuple[object, tuple[object]]:
        """Pickle as text: a callable of ``py:`` is imported again where the spec is loaded."""
        if any(isinstance(part, FunctionPart) for part in self.parts):
            return IdSpec, (self.parts,)
        return id_spec, (str(self),)

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that it reads, of ``headers``, ``key``, ``value`` and ``record``."""
        return frozenset(need for part in self.parts for need in part.needs)

    @property
    def header(self) -> str | None:
        """The name of the header whose value is the whole ID; None if the ID is anything else."""
        only = self.parts[0]
        return only.argument if len(self.parts) == 1 and isinstance(only, HeaderPart) else None

    def describe(self) -> tuple[Leaf, ...]:
        """Return the columns of bytes that are hashed, in order, from which a Spark column expression is built.

        ``cloudevents`` contributes two, so there may be more than parts. `dedup_sdk.ids._columns` says how
        they are hashed.
        """
        return tuple(leaf for part in self.parts for leaf in part.leaves)

    def digests(self, fields: Fields) -> Ids:
        """Return the IDs of ``fields.count`` records, in order; each column that is needed is read once.

        No content of a record raises: a record whose ID cannot be read has none, with a reason.
        """
        shared = fields if isinstance(fields, ReadOnce) else ReadOnce(fields)
        if len(self.parts) == 1:
            return digest_columns(self.parts[0].columns(shared))
        return digest_columns([column for part in self.parts for column in part.columns(shared)])

    def mark_of(self, digest: bytes) -> bytes:
        """Return the digest of a record's mark."""
        return digest

    def redriven(self, digest: bytes, header: bytes) -> bytes:
        """Return the digest of a record's ID together with its redrive header (`dedup_sdk.ids._redrive`)."""
        return redriven_digest(digest, header)

    def digest_of(self, key: bytes | None) -> bytes | None:
        """Return the digest that a record with this key has once it is admitted."""
        return key

    def name_of(self, digest: bytes | None) -> bytes | None:
        """Return the 16 bytes that identify a record's ID in a shared store, None without an ID."""
        return digest


def id_spec(text_or_spec: str | IdSpec, *, imports: bool = True) -> IdSpec:
    """Return the spec that a text such as ``header:dedup-id`` or ``json:/tenant+json:/order/id`` means.

    A spec is returned as it is. `dedup_sdk.ids._spec` has the grammar. A text with ``py:`` imports code: take it from
    the user's configuration only. Compare a spec found in a file as text, or read it with ``imports=False``, which
    refuses ``py:`` and imports nothing. Raises `IdSpecError` in one line.
    """
    if isinstance(text_or_spec, IdSpec):
        return text_or_spec
    given: object = text_or_spec  # what callers without a type checker pass
    if getattr(given, "__module__", None) == __name__ and inspect.isfunction(given):
        raise IdSpecError(
            f'id spec {given.__name__} is a builder that was not called; write e.g. header("dedup-id") or key()'
        )
    if callable(given):
        called = getattr(given, "__name__", type(given).__name__)
        raise IdSpecError(
            f"id spec {called} is a function without a name and a version; write dedup_sdk.ids.function({called}, "
            f'name="order-id", version="1"), {_ANOTHER_VERSION}'
        )
    if not isinstance(given, str):
        raise IdSpecError(f"id spec {shown(given)} is of type {type(given).__name__}; write {FORMS}")
    return IdSpec(parse_parts(given, imports=imports))


def header(name: str) -> IdSpec:
    """Return the spec of the last header of exactly this name; an empty value is an ID, null or absent is none."""
    return IdSpec((HeaderPart(name),))


def key() -> IdSpec:
    """Return the spec of the record's key; an empty key is an ID, null is none."""
    return IdSpec((FieldPart("key"),))


def unframed_key() -> IdSpec:
    """Return the spec of the record's key without the five bytes that a schema registry's serializer puts in front.

    They name the schema, so that with `key` each new schema makes other IDs. A key without them has no ID.
    """
    return IdSpec((UnframedKeyPart(),))


def json(pointer: str) -> IdSpec:
    """Return the spec of the value at a JSON pointer (RFC 6901) such as ``/order/id`` in the record's value.

    Strings and signed 64-bit integers are IDs, and ``"5"`` is another ID than ``5``.
    """
    return IdSpec((JsonPart(pointer),))


def cloudevents() -> IdSpec:
    """Return the spec of a CloudEvent, in binary or structured mode: its ``id`` and ``source``, both not empty."""
    return IdSpec((CloudEventsPart(),))


def value() -> IdSpec:
    """Return the spec of the record's whole value: a last resort.

    Do not use a body as the dedup ID if you can avoid it: two equal messages may both be intended, and a
    resend may be serialised differently.
    """
    return IdSpec((FieldPart("value"),))


def py(path: str, *, version: str) -> IdSpec:
    """Return the spec of the result of ``module:callable`` for a `Record`: ``str``, ``int`` (signed, 64 bits) or None.

    ``version`` is part of the spec: you must change it whenever the callable returns other IDs, or IDs for
    other records. A record for which it raises, or returns anything else, has no ID. Raises `IdSpecError`
    when it cannot be imported, or the version is empty or not text.
    """
    _check_word(f"py({shown(path)})", "version", version, "1")
    return IdSpec((PyPart(f"{path}@{version}"),))


def function(call: Callable[[Record], str | int | None], *, name: str, version: str) -> IdSpec:
    """Return the spec of the result of a function of your program, as `py` does for one that it imports.

    No other process can call it: ``dedup backfill`` cannot rebuild its marks. ``name`` and ``version`` are its identity
    in stores and commits, because a function has no other that lasts (a lambda, a partial, a module that is run as a
    program). Use a name for one function only, and change the version whenever it returns other IDs, or IDs for other
    records.

    Raises `IdSpecError` for anything but a function of one `Record`, or a name or version that is empty or not text.
    """
    _check_function(call)
    called = f"function({getattr(call, '__name__', call)})"
    _check_word(called, "name", name, "order-id")
    _check_word(called, "version", version, "1")
    return IdSpec((FunctionPart(f"{name}@{version}", call),))


def _check_function(call: object) -> None:
    """Refuse anything but a function of one record; ``call`` is what callers without a type checker pass."""
    method = getattr(call, "__call__", None)  # noqa: B004 (not whether it can be called, but how)
    is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(method)
    if not callable(call) or is_async or inspect.isclass(call):
        raise IdSpecError(
            f"function({shown(call)}) needs a plain function of one Record; write e.g. "
            'function(lambda record: record.key.decode(), name="order-id", version="1")'
        )
    unfit = unfit_arguments(call, 1)
    if unfit is not None:
        raise IdSpecError(
            f"function({shown(call)}) cannot be called with one Record, as its arguments are {unfit}; give a function "
            "of one Record"
        )


def _check_word(called: str, setting: str, value: object, example: str) -> None:
    if (
        not isinstance(value, str)
        or not _is_text(value)
        or not value
        or "@" in value
        or value != value.strip()
    ):
        raise IdSpecError(
            f"{called} has the {setting} {shown(value)}; write a text without @ and without blanks around it, e.g. "
            f'{setting}="{example}"'
        )


# --- the keys of records, as one group knows them


class ReadsKeys(Protocol):
    """Reads the digests of IDs, source keys or unit keys of records; all three are called *keys* here."""

    def digests(self, fields: Fields) -> Ids:
        """Return the keys of records."""


class Redrivable(ReadsKeys, Protocol):
    """Keys that differ with a redrive header."""

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that are read."""

    def redriven(self, key: bytes, header: bytes) -> bytes | None:
        """Return the key that replaces ``key`` for a record with this redrive header; None where it has no ID."""


def redrive_headers(fields: Fields, group: str | None) -> dict[int, bytes]:
    """Return, by row, the redrive header's value of records whose header names the group (None: any)."""
    shared = ReadOnce.of(fields)
    if not shared.has_header(REDRIVE_HEADER):
        return {}
    prefix = redrive_prefix(group)
    values = enumerate(shared.header(REDRIVE_HEADER))
    return {row: value for row, value in values if value is not None and value.startswith(prefix)}


def redriven_keys(keys: Redrivable, ids: Ids, fields: Fields, group: str | None) -> dict[int, bytes | None]:
    """Return, by row, the keys of records with a redrive header that names a group (None: any).

    The key is None where the record has no ID. ``ids`` are the keys without the header. A reader for no
    particular group must remember both.
    """
    return {
        row: keys.redriven(key, header)
        for row, header in redrive_headers(fields, group).items()
        if (key := ids.digests[row]) is not None
    }


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """Reads the keys of records as one consumer group knows them."""

    keys: Redrivable
    group: str

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that are read."""
        return self.keys.needs | {"headers"}

    def digest_reader(self) -> Callable[[Headers], bytes | None] | None:
        """Return a quick reader of a record's digest from its headers, if the ID is a header; None if it is not.

        The reader returns None if in doubt: then ask `digests`.
        """
        wanted = self.keys.header if isinstance(self.keys, IdSpec) else None

        def read(headers: Headers) -> bytes | None:
            found = None
            for name, value in headers:
                if name == wanted:
                    found = value
                elif name == REDRIVE_HEADER:
                    return None
            return None if found is None or len(found) > MAX_ID_BYTES else digest_one(found)

        return None if wanted is None else read

    def digests(self, fields: Fields) -> Ids:
        """Return the keys of ``fields.count`` records, in order; each column that is needed is read once."""
        shared = fields if isinstance(fields, ReadOnce) else ReadOnce(fields)
        ids = self.keys.digests(shared)
        if not shared.has_header(REDRIVE_HEADER):
            return ids
        redriven = redriven_keys(self.keys, ids, shared, self.group)
        digests, missing = list(ids.digests), dict(ids.missing)
        for row, key in redriven.items():
            digests[row] = key
            if key is None:
                missing[row] = "absent"
        return Ids(digests, missing)
