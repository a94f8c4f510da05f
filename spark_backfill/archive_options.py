"""An archive as the command line describes it: where it lies, how it is written, and who wrote it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_backfill.column_map import ColumnPlace

KAFKA: Final = "kafka"
"""The source that is the topic itself."""
ISOLATIONS: Final = ("read_committed", "read_uncommitted")
TABLE: Final = "table:"
"""How a source begins that is the name of a table in Spark's catalog, not a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """An archive of records, in one or several places that are written alike.

    - ``places``: paths and URLs, or names of tables behind `TABLE`; ``format``: Spark's name of the paths' format.
    - ``columns``: where Kafka's columns stand; ``read_options``: options of Spark's reader.
    - ``isolation``: ``read_committed`` where the archive has no records of aborted transactions, else
      ``read_uncommitted``.
    """

    places: tuple[str, ...]
    format: str
    columns: Mapping[str, ColumnPlace] = field(default_factory=dict)
    read_options: Mapping[str, str] = field(default_factory=dict)
    isolation: str


def paths_are_elsewhere() -> bool:
    """Whether a bare path may be one of another file system than this machine's."""
    settings = os.environ.get("DEDUP_SPARK_ARGS", "")
    return "fs.default" in settings or any(
        name in os.environ for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
    )
