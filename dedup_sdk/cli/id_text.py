"""From the text of an ID, as a person types it, to the digests under which it may be remembered."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids import cloudevents, digest_parts
from dedup_sdk.last.keys import PARTITION_LANE, spec_of_lanes
from dedup_sdk.units.keys import spec_in_units

if TYPE_CHECKING:
    from collections.abc import Sequence

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")


def part_names(spec: str) -> list[str]:
    """Name the texts that an ID of this spec (canonical text) is made of, e.g. ``["header:tenant", "key"]``.

    The spec is only read, never resolved: one that was found in a store must not import code (``py:``).
    """
    names = []
    for part in spec.split("+"):
        names += [leaf.argument for leaf in cloudevents().describe()] if part == "cloudevents" else [part]
    return names


def candidate_digests(spec: str, texts: Sequence[str]) -> list[bytes]:
    """Return the digests (16 bytes each) of the marks that an ID of these texts, one a part, may have.

    Where IDs are compared with the last one the texts name the lane: none where the partition is the lane. There are several where a text is an integer and the part is ``json:`` or ``py:``: the string ``"5"`` and the number 5
    are different IDs, and both are meant.

    Raises:
        IdSpecError: the spec has another number of parts; the message names them.
    """
    lanes = spec_of_lanes(spec)
    if lanes == "":
        if texts:
            raise IdSpecError("here each partition is one lane; leave the ID out to see the last one of each")
        return [PARTITION_LANE]
    spec = lanes or spec_in_units(spec) or spec
    names = part_names(spec)
    if len(names) != len(texts):
        raise IdSpecError(
            f"{len(texts)} parts were given, and an ID of {spec!r} has {len(names)}: give {' '.join(names)}"
        )
    choices = [_candidate_bytes(name, text) for name, text in zip(names, texts, strict=True)]
    return [digest_parts(parts) for parts in product(*choices)]


def _candidate_bytes(name: str, text: str) -> list[bytes]:
    # What a shell passes that is no UTF-8 arrives as surrogates, and leaves as the bytes that were typed.
    typed = text.encode(errors="surrogateescape")
    if name.startswith(("json:", "py:")) and _INTEGER.fullmatch(text):
        return [typed, b"\xff" + typed]
    return [typed]
