"""``dedup lookup``: whether an ID was seen, where and when."""

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

from dedup_sdk.cli.id_text import candidate_digests
from dedup_sdk.cli.options import Cluster, Group, Json, Store, Topic
from dedup_sdk.cli.selection import of_one_group, stored_partitions
from dedup_sdk.cli.text import printable
from dedup_sdk.store.read_only import read_partition

Id = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...",
        help="The ID; of an ID of several parts each part, in their order.",
        show_default=False,
    ),
]


def lookup(
    *,
    id_parts: Id,
    store: Store,
    topic: Topic,
    group: Group = None,
    cluster: Cluster = None,
    json_output: Json = False,
) -> None:
    """Say where and when an ID was last completed.

    **Examples**

        dedup lookup --store var/dedup --topic orders order-4711
        dedup lookup --store var/dedup --topic orders tenant-1 order-4711

    The text is taken as the bytes of the ID; of which parts an ID is made (in the second example: `header:tenant+key`) is
    known from the store. For `json:` and `py:` a whole number is looked up both as a number and as a string. All partitions
    of the topic are asked, beside a running consumer too. Where a mark bears a payload its size is told (`payload_bytes`).

    Exit status 0 when the ID is known, 1 when it is not (then stdout is empty, or its `seen` list). A mark outside the
    window may still be found, until it is dropped: the window is the consumer's to judge.
    """
    seen = []
    for found in of_one_group(stored_partitions(store, topic=topic, group=group, cluster=cluster)):
        with read_partition(found.path) as opened:
            for digest in candidate_digests(opened.identity.id_spec, id_parts):
                seen += [
                    {
                        "partition": found.partition,
                        "offset": max(mark.offset, -1),
                        "timestamp_ms": mark.timestamp_ms,
                        **({"payload_bytes": len(mark.payload)} if mark.payload else {}),
                    }
                    for mark in opened.find_all(digest)[:1]
                ]
    if json_output:
        typer.echo(json.dumps({"topic": topic, "id": id_parts, "seen": seen}))
    else:
        for each in seen:
            where = "in another partition before" if each["offset"] < 0 else f"offset {each['offset']}"
            payload = f", a payload of {each['payload_bytes']:,} bytes" if "payload_bytes" in each else ""
            typer.echo(
                f"{printable(topic)}[{each['partition']}] {where}, {_time(each['timestamp_ms'])}{payload}"
            )
    if not seen:
        unseen = printable(f"{topic} has seen no {' '.join(id_parts)!r} that is still remembered")
        typer.echo(f"dedup: {unseen}", err=True)
        raise typer.Exit(1)


def _time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "without a timestamp"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"  # beyond the calendar: producers write what they like
