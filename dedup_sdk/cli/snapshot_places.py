"""Where snapshots are, as the commands about them take it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dedup_sdk.cli.text import printable
from dedup_sdk.errors import SnapshotError
from dedup_sdk.store.snapshot_source import find_snapshots, snapshot_places

if TYPE_CHECKING:
    from dedup_sdk.store.snapshot_source import Source

Place = Annotated[
    str,
    typer.Argument(
        metavar="PLACE",
        help="A snapshot's folder, a folder that holds several, or a URL of either.",
        show_default=False,
    ),
]
OfTopic = Annotated[
    str | None, typer.Option("--topic", help="Only snapshots of this topic.", show_default=False)
]
OfGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        help='Only snapshots of this consumer group; "" are those made without one.',
        show_default=False,
    ),
]


def found_in(place: str) -> tuple[list[Source], list[str]]:
    """Return the snapshots in a place, at least one, and a line for each that cannot be read.

    Raises `ConfigurationError` for what is no place, `SnapshotError` when there is none.
    """
    return find_snapshots(snapshot_places(place))


def only_one(place: str) -> Source:
    """Return the one snapshot at a place; raises `SnapshotError` when there are several, or none."""
    found, _ = found_in(place)
    if len(found) > 1:
        names = ", ".join(each.place for each in found[:3])
        raise SnapshotError(f"{place} holds {len(found)} snapshots ({names}, ...): name one of them")
    return found[0]


def tell(line: str) -> None:
    """Say something on stderr."""
    typer.echo(f"dedup: {printable(line)}", err=True)
