"""The ID spec: which bytes of a record name the logical message; its text, and the functions that build one.

A text is made of parts, joined by ``+``:

    spec  = part *( "+" part )
    part  = "header:" NAME | "key" | "json:" POINTER | "cloudevents" | "value" | "py:" MODULE ":" CALLABLE "@" VERSION

In an argument ``%XX`` is a byte of its UTF-8 form, so that a literal ``+`` is written ``%2B`` and a literal ``%`` is
``%25``; all else stands for itself. Blanks around a part do not count. The canonical text also escapes what is blank,
control or not ASCII, so that it stays one printable line, and the same under every version of Unicode.

A builder's argument stands for itself: nothing in it is escaped.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids.digest import Ids, digest_columns
from dedup_sdk.ids.fields import Fields, Need, ReadOnce
from dedup_sdk.ids.parts import CloudEventsPart, FieldPart, HeaderPart, JsonPart, Part, PyPart
from dedup_sdk.ids.redrive import redriven_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dedup_sdk.ids.parts import Leaf, Part

FORMS = "header:NAME, key, json:/POINTER, cloudevents, value or py:MODULE:CALLABLE@VERSION, joined by + (a literal + is %2B)"

_WITH_ARGUMENT: dict[str, Callable[[str], Part]] = {"header": HeaderPart, "json": JsonPart, "py": PyPart}
_ALONE: dict[str, Callable[[], Part]] = {
    "key": partial(FieldPart, "key"),
    "cloudevents": CloudEventsPart,
    "value": partial(FieldPart, "value"),
}
_STRAY_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_STANDS_FOR_ITSELF = "".join(sorted(set(string.punctuation) - set("+%")))


def parse_parts(text: str) -> tuple[Part, ...]:
    """Read the text of a spec; raises `IdSpecError` that names the text and the accepted forms."""
    return tuple(_parse_part(part.strip(), text) for part in text.split("+"))


def format_parts(parts: Sequence[Part]) -> str:
    """Return the canonical text, which `parse_parts` reads back."""
    return "+".join(
        f"{part.name}:{quote(part.argument, safe=_STANDS_FOR_ITSELF)}" if part.argument else part.name
        for part in parts
    )


def _parse_part(part: str, text: str) -> Part:
    name, colon, argument = part.partition(":")
    if not colon and name in _ALONE:
        return _ALONE[name]()
    if not argument or name not in _WITH_ARGUMENT:
        raise IdSpecError(f"id spec {text!r}: {part!r} is not a part; write {FORMS}")
    if _STRAY_PERCENT.search(argument):
        raise IdSpecError(f"id spec {text!r}: a % in {part!r} is no escape; write a literal % as %25")
    try:
        argument = unquote(argument, errors="strict")
    except UnicodeDecodeError:
        raise IdSpecError(
            f"id spec {text!r}: the escapes in {part!r} are not UTF-8; write e.g. %C3%A9"
        ) from None
    return _WITH_ARGUMENT[name](argument)


@dataclass(frozen=True, slots=True, repr=False)
class IdSpec:
    """Which bytes of a record are its ID: a hashable value, made by `id_spec` or by a builder such as `header`.

    ``str(spec)`` is its canonical text, which `id_spec` reads back to an equal spec (it is also how a spec is pickled);
    ``a + b`` is the spec whose IDs are pairs of both. Equal specs give equal digests on every machine.
    Raises `IdSpecError` when made of no parts.
    """

    parts: tuple[Part, ...]

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

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Pickle as text: a callable of ``py:`` is imported again where the spec is loaded."""
        return id_spec, (str(self),)

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that it reads, of ``headers``, ``key``, ``value`` and ``record``."""
        return frozenset(need for part in self.parts for need in part.needs)

    def describe(self) -> tuple[Leaf, ...]:
        """Return the columns of bytes that are hashed, in order, from which a Spark column expression is built.

        ``cloudevents`` contributes two, so there may be more than parts. `dedup_sdk.ids.digest` says how they are hashed.
        """
        return tuple(leaf for part in self.parts for leaf in part.leaves)

    def digests(self, fields: Fields) -> Ids:
        """Return the IDs of ``fields.count`` records, in order; each column that is needed is read once.

        No content of a record raises: a record whose ID cannot be read has none, with a reason.
        """
        if len(self.parts) == 1:
            return digest_columns(self.parts[0].columns(fields))
        shared = ReadOnce.of(fields)
        return digest_columns([column for part in self.parts for column in part.columns(shared)])

    def mark_of(self, digest: bytes) -> bytes:
        """Return the digest of a record's mark."""
        return digest

    def redriven(self, digest: bytes, header: bytes) -> bytes:
        """Return the digest of a record's ID together with its redrive header (`dedup_sdk.ids.redrive`)."""
        return redriven_digest(digest, header)

    def name_of(self, digest: bytes | None) -> bytes | None:
        """Return the 16 bytes by which a shared store knows a record's ID, None without an ID."""
        return digest


def id_spec(text_or_spec: str | IdSpec) -> IdSpec:
    """Return the spec that a text such as ``header:dedup-id`` or ``json:/tenant+json:/order/id`` means.

    A spec is returned as it is. `dedup_sdk.ids.spec` has the grammar. A text with ``py:`` imports code: take it from
    the user's configuration only, and compare a spec found in a file as text. Raises `IdSpecError` in one line.
    """
    if isinstance(text_or_spec, IdSpec):
        return text_or_spec
    if not isinstance(text_or_spec, str):
        raise IdSpecError(f"id spec {text_or_spec!r} is {type(text_or_spec).__name__}; write {FORMS}")
    return IdSpec(parse_parts(text_or_spec))


def header(name: str) -> IdSpec:
    """Return the spec of the last header of exactly this name; an empty value is an ID, null or absent is none."""
    return IdSpec((HeaderPart(name),))


def key() -> IdSpec:
    """Return the spec of the record's key; an empty key is an ID, null is none."""
    return IdSpec((FieldPart("key"),))


def json(pointer: str) -> IdSpec:
    """Return the spec of the value at a JSON pointer (RFC 6901) such as ``/order/id`` in the record's value.

    Strings and signed 64-bit integers are IDs, and ``"5"`` is another ID than ``5``.
    """
    return IdSpec((JsonPart(pointer),))


def cloudevents() -> IdSpec:
    """Return the spec of a CloudEvent, in binary or structured mode: its ``id`` with its ``source``, neither of them empty."""
    return IdSpec((CloudEventsPart(),))


def value() -> IdSpec:
    """Return the spec of the record's whole value: a last resort.

    Do not use a body as the dedup ID if you can avoid it: two equal messages may both be intended, and a resend may be serialised differently.
    """
    return IdSpec((FieldPart("value"),))


def py(path: str, *, version: str) -> IdSpec:
    """Return the spec of the result of ``module:callable`` for a `Record`: ``str``, ``int`` (signed, 64 bits) or None.

    ``version`` is part of the spec: you must change it whenever the callable returns other IDs, or IDs for other records. A record for which
    it raises, or returns anything else, has no ID. Raises `IdSpecError` when it cannot be imported, or the version is empty or not text.
    """
    given: object = version  # what callers without a type checker pass
    if not isinstance(given, str) or not given or "@" in given or given != given.strip():
        raise IdSpecError(
            f'py({path!r}) has the version {given!r}; write a text without @ and without blanks around it, e.g. version="1"'
        )
    return IdSpec((PyPart(f"{path}@{version}"),))
