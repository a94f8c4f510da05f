"""``dedup dump``: what a partition's key store remembers, as text that can be compared."""

import sys
from typing import Annotated

import typer

from dedup_sdk.cli.options import Cluster, Group, Store, Topic
from dedup_sdk.cli.selection import of_one_group, stored_partitions
from dedup_sdk.store.mark_text import mark_texts
from dedup_sdk.store.read_only import read_partition

Partition = Annotated[
    int, typer.Option("--partition", min=0, help="The partition's number.", show_default=False)
]


def dump(
    *, store: Store, topic: Topic, partition: Partition, group: Group = None, cluster: Cluster = None
) -> None:
    """Print every mark of a partition: digest (hex), offset, timestamp (ms).

    **Examples**

        dedup dump --store var/dedup --topic orders --partition 0
        diff <(dedup dump --store a --topic orders --partition 0) <(dedup dump --store b --topic orders --partition 0)

    One line an ID, sorted by digest, on stdout. A mark that bears a payload (what a lane keeps with it) has `payload=BYTES:CHECKSUM`
    behind its timestamp. It reads beside a running consumer, without taking its lock; what it
    prints is what was durable when it began. An ID itself is never stored.
    """
    (found,) = of_one_group(
        stored_partitions(store, topic=topic, partition=partition, group=group, cluster=cluster)
    )
    with read_partition(found.path) as opened:
        for page in opened.scan_all():
            sys.stdout.write("".join(f"{digest} {text}\n" for digest, text in mark_texts(page)))
