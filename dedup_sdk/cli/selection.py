"""Which of the partitions in a store's folder a command means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dedup_sdk.errors import StoreError
from dedup_sdk.store.paths import PartitionFolder, list_partitions

if TYPE_CHECKING:
    from pathlib import Path


def stored_partitions(
    store: Path,
    *,
    topic: str | None = None,
    partition: int | None = None,
    group: str | None = None,
    cluster: str | None = None,
) -> list[PartitionFolder]:
    """Return the partitions under ``store`` that agree with everything given, ascending; at least one.

    Raises:
        StoreError: there is none; the message says what is there instead.
    """
    found = list_partitions(store)
    if not found:
        raise StoreError(f"{store} holds no key store: give the folder that DedupConsumer(store=...) names")
    wanted = {"cluster": cluster, "group": group, "topic": topic, "partition": partition}
    for name, value in wanted.items():
        present = sorted({getattr(each, name) for each in found})
        found = [each for each in found if value is None or getattr(each, name) == value]
        if not found:
            shown = ", ".join(str(each) for each in present)
            raise StoreError(f"{store} holds nothing of {name} {value!r}: it has {shown}")
    return found


def of_one_group(found: list[PartitionFolder]) -> list[PartitionFolder]:
    """Return the partitions as they are if all are of one group on one cluster.

    Raises:
        typer.BadParameter: they are of several; the message names the option that is needed, and its choices.
    """
    for name in ("cluster", "group"):
        present = sorted({getattr(each, name) for each in found})
        if len(present) > 1:
            raise typer.BadParameter(
                f"the folder holds several: {', '.join(present)}", param_hint=f"--{name}"
            )
    return found
