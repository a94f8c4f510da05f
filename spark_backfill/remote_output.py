"""Snapshots that are to lie behind a URL: made in a folder on this machine, uploaded when all are whole, manifests last."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from dedup_sdk.errors import SnapshotError
from dedup_sdk.store.manifest import read_manifest
from dedup_sdk.store.remote_snapshot import shown
from dedup_sdk.store.snapshot_copy import UrlTarget
from dedup_sdk.store.snapshot_source import Source
from dedup_sdk.store.work_folder import work_folder
from spark_backfill.errors import BackfillError
from spark_backfill.options import Options
from spark_backfill.output import REPORT_NAME, Output
from spark_backfill.report_page.document import FINDINGS_NAME


@contextmanager
def open_output(options: Options) -> Generator[Output, None, None]:
    """Open where the options say that snapshots go, a folder or a URL, or one that is gone at the end.

    Raises:
        BackfillError: the folder, or the one where snapshots for a URL are made, cannot be used.
        SnapshotError: the URL holds a snapshot, or cannot be written.
    """
    if options.output is not None and not options.url:
        with Output(options.output, overwrite=options.overwrite, members=options.members) as output:
            yield output
        return
    targets: list[UrlTarget] = []
    if options.url:
        # One that lies at the URL itself would hide those below it.
        whole = UrlTarget(options.url)
        targets = [UrlTarget(options.url, member) for member in options.members] or [whole]
    for target in targets:
        target.try_out()
    scratch = Path(tempfile.gettempdir()) if options.scratch is None else options.scratch
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(work_folder(scratch.absolute() / "dedup-backfill", "upload"))
        except OSError as error:
            raise BackfillError(
                f"scratch folder {str(scratch)!r} cannot be used: {error.strerror}; choose another with --scratch"
            ) from None
        yield stack.enter_context(_RemoteOutput(folder / "snapshot", targets, options.members))


def check_shared(options: Options, spark: SparkSession) -> None:
    """See to it that workers on other machines can hand over what they write.

    Raises:
        BackfillError: there may be such workers, the output is a URL, or none, and nobody named a folder that is shared.
    """
    master = spark.sparkContext.master or ""
    if (
        options.scratch is not None
        or master.startswith("local")
        or not (options.url or options.output is None)
    ):
        return
    what = (
        f"output {shown(options.url)} with Spark at {master}: the driver uploads what workers write"
        if options.url
        else f"--shared without --output with Spark at {master}: workers share what other workers write"
    )
    raise BackfillError(
        f"{what}, so give --scratch DIR, a folder on storage that the driver and all workers share"
    )


class _RemoteOutput(Output):
    """Is published at URLs, a snapshot each: all files of all of them go up first, and then the manifests. Without URLs nowhere."""

    def __init__(self, output: Path, targets: Sequence[UrlTarget], members: Sequence[str]) -> None:
        self._targets = targets
        super().__init__(output, overwrite=False, members=members)

    def publish(self) -> None:
        """Upload what was made.

        Raises:
            SnapshotError: something cannot be written, or is not what it was when it was made. Then there is no manifest, or the
                error names the snapshots that are there nevertheless.
        """
        sources = [self._upload(group, target) for group, target in enumerate(self._targets)]
        begun: list[UrlTarget] = []
        try:
            for target, source in zip(self._targets, sources, strict=True):
                begun.append(target)
                target.finish(source)
        except BaseException as error:
            stay = [target.place for target in begun if not target.take_back()]
            if stay and isinstance(error, SnapshotError):
                raise SnapshotError(
                    f"{error}; of the same run {', '.join(stay)} may be there and whole: remove them, or choose another URL"
                ) from error
            raise

    def _upload(self, group: int, target: UrlTarget) -> Source:
        folder = self.snapshot(group)
        source = Source(place=str(folder), manifest=read_manifest(folder))
        for _ in target.upload(source):
            pass
        for extra in (REPORT_NAME, FINDINGS_NAME):
            if (folder / extra).exists():
                target.put(folder / extra)
        return source
