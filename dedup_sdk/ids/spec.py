"""The ID spec: which bytes of a record name the logical message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids.digest import Ids, digest_columns
from dedup_sdk.ids.fields import Fields, Need, ReadOnce
from dedup_sdk.ids.grammar import FORMS, format_parts, parse_parts
from dedup_sdk.ids.redrive import redriven_digest

if TYPE_CHECKING:
    from dedup_sdk.ids.parts import Leaf, Part


@dataclass(frozen=True, slots=True, repr=False)
class IdSpec:
    """Which bytes of a record are its ID: a hashable value, made by `id_spec` or by a builder such as `header`.

    ``str(spec)`` is its canonical text, which `id_spec` reads back to an equal spec (it is also how a spec is pickled);
    ``a + b`` is the spec whose IDs are pairs of both. Equal specs give equal digests on every machine.
    Raises `IdSpecError` when made of no parts.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        """Refuse a spec of nothing."""
        if not self.parts:
            raise IdSpecError(f"an id spec of no parts names nothing; write {FORMS}")

    def __str__(self) -> str:
        """The canonical text."""
        return format_parts(self.parts)

    def __repr__(self) -> str:
        return f"id_spec({str(self)!r})"

    def __add__(self, other: IdSpec) -> IdSpec:
        """The spec whose IDs are made of both."""
        if not isinstance(other, IdSpec):
            return NotImplemented
        return IdSpec(self.parts + other.parts)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Travel as text: a callable of ``py:`` is imported again where the spec arrives."""
        return id_spec, (str(self),)

    @property
    def needs(self) -> frozenset[Need]:
        """The columns that it reads: some of ``headers``, ``key``, ``value`` and ``record``."""
        return frozenset(need for part in self.parts for need in part.needs)

    def describe(self) -> tuple[Leaf, ...]:
        """Return the columns of bytes that are hashed, in order: what a Spark column expression is built from.

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
        """Return the digest of the mark that a record leaves."""
        return digest

    def redriven(self, digest: bytes, header: bytes) -> bytes:
        """Return the digest of a record's ID together with its redrive header (`dedup_sdk.ids.redrive`)."""
        return redriven_digest(digest, header)

    def name_of(self, digest: bytes | None) -> bytes | None:
        """Return by which 16 bytes others know a record's ID, None where it has none."""
        return digest


def id_spec(text_or_spec: str | IdSpec) -> IdSpec:
    """Return the spec that a text such as ``header:dedup-id`` or ``json:/tenant+json:/order/id`` means.

    A spec is returned as it is. `dedup_sdk.ids.grammar` has the grammar. A text with ``py:`` imports code: take it from
    the user's configuration only, and compare a spec found in a file as text. Raises `IdSpecError` in one line.
    """
    if isinstance(text_or_spec, IdSpec):
        return text_or_spec
    if not isinstance(text_or_spec, str):
        raise IdSpecError(f"id spec {text_or_spec!r} is {type(text_or_spec).__name__}; write {FORMS}")
    return IdSpec(parse_parts(text_or_spec))
