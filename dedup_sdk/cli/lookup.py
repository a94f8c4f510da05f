"""``dedup lookup``: whether an ID was seen, where and when."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from dedup_sdk.cli.id_text import candidate_digests
from dedup_sdk.cli.options import Cluster, Group, Json, Store, Topic
from dedup_sdk.cli.selection import of_one_group, stored_partitions
from dedup_sdk.cli.text import printable
from dedup_sdk.last.seen_bytes import decode_seen
from dedup_sdk.store.read_only import read_partition

Id = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID...",
        help="The ID; of an ID of several parts each part, in their order.",
        show_default=False,
    ),
]


def lookup(
    *,
    id_parts: Id = None,
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
    of the topic are asked, beside a running consumer too.

    Of a store whose IDs are compared with the last one (`LastId`) the text names the lane, and the last ID of it is told; leave it out
    where the partition is the lane.

    Exit status 0 when the ID is known, 1 when it is not (then stdout is empty, or its `seen` list). A mark outside the
    window may still be found, until it is dropped: the window is the consumer's to judge.
    """
    texts = id_parts or []
    seen: list[dict[str, Any]] = []
    for found in of_one_group(stored_partitions(store, topic=topic, group=group, cluster=cluster)):
        with read_partition(found.path) as opened:
            for digest in candidate_digests(opened.identity.id_spec, texts):
                seen += [
                    {
                        "partition": found.partition,
                        "offset": max(mark.offset, -1),
                        "timestamp_ms": mark.timestamp_ms,
                        **({"last_id": _shown(mark.payload)} if mark.payload else {}),
                    }
                    for mark in opened.find_all(digest)[:1]
                ]
    if json_output:
        typer.echo(json.dumps({"topic": topic, "id": texts, "seen": seen}))
    else:
        for each in seen:
            where = "in another partition before" if each["offset"] < 0 else f"offset {each['offset']}"
            last = f", last ID {printable(each['last_id'])}" if "last_id" in each else ""
            typer.echo(
                f"{printable(topic)}[{each['partition']}] {where}, {_time(each['timestamp_ms'])}{last}"
            )
    if not seen:
        unseen = printable(f"{topic} has seen no {' '.join(texts)!r} that is still remembered")
        typer.echo(f"dedup: {unseen}", err=True)
        raise typer.Exit(1)


def _shown(payload: bytes) -> str:
    return decode_seen(payload).last_id.decode(errors="backslashreplace")


def _time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "without a timestamp"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"  # beyond the calendar: producers write what they like
