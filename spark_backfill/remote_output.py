"""A snapshot behind a URL.

It is made in a folder on this machine, and uploaded when it is whole, its manifest after its files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from dedup_sdk._store.manifest import read_manifest
from dedup_sdk._store.paths import work_folder
from dedup_sdk._store.snapshot_copy import UrlTarget
from dedup_sdk._store.snapshot_source import Source, redacted_url
from dedup_sdk.errors import SnapshotError
from spark_backfill.errors import BackfillError
from spark_backfill.options import Options
from spark_backfill.output import REPORT_NAME, Output
from spark_backfill.report_page.document import FINDINGS_NAME


@contextmanager
def open_output(options: Options) -> Generator[Output, None, None]:
    """Open where the options say that the snapshot goes, a folder or a URL.

    Raises:
        BackfillError: the folder, or the one where a snapshot for a URL is made, cannot be used.
        SnapshotError: the URL holds a snapshot, or cannot be written.
    """
    if not options.url:
        with Output(options.output, overwrite=options.overwrite) as output:
            yield output
        return
    target = UrlTarget(options.url)
    target.try_out()
    scratch = Path(tempfile.gettempdir()) if options.scratch is None else options.scratch
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(work_folder(scratch.absolute() / "dedup-backfill", "upload"))
        except OSError as error:
            raise BackfillError(
                f"scratch folder {str(scratch)!r} cannot be used: {error.strerror}; choose another with --scratch"
            ) from None
        yield stack.enter_context(Output(folder / "snapshot", overwrite=False, put=partial(_upload, target)))


def check_scratch(options: Options, spark: SparkSession) -> None:
    """See to it that workers on other machines can hand over their files.

    Raises:
        BackfillError: there may be such workers, the output is a URL, and nobody named a folder that is shared.
    """
    master = spark.sparkContext.master or ""
    if options.url and options.scratch is None and not master.startswith("local"):
        raise BackfillError(
            f"output {redacted_url(options.url)} with Spark at {master}: the driver uploads what workers write, so "
            "give --scratch DIR, a folder on storage that the driver and all workers share"
        )


def _upload(target: UrlTarget, folder: Path) -> None:
    """Publish a snapshot at a URL: all files go up first, then the manifest, then the report.

    Raises:
        SnapshotError: something cannot be written, or has changed since it was made. Then there is no
            manifest, or the error says that the snapshot is there nevertheless.
    """
    source = Source(place=str(folder), manifest=read_manifest(folder))
    try:
        for _ in target.upload(source):
            pass
        target.finish(source)
        # Only now: another run may have published a snapshot there, whose report is not to be replaced.
        for extra in (REPORT_NAME, FINDINGS_NAME):
            if (folder / extra).exists():
                target.put(folder / extra)
    except BaseException as error:
        if not target.take_back() and isinstance(error, SnapshotError):
            raise SnapshotError(
                f"{error}; {target.place} may be there and whole: remove it, or choose another URL"
            ) from error
        raise
