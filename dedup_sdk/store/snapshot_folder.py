"""A snapshot's folder while it is made: beside its place, and put there whole, by one rename, or not at all."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dedup_sdk.errors import ConfigurationError, SnapshotError
from dedup_sdk.store.paths import make_files_private, why_unusable
from dedup_sdk.store.work_folder import work_folder


@contextmanager
def new_snapshot(output: Path) -> Generator[Path, None, None]:
    """Give an empty private folder that becomes ``output`` when the block ends without an error.

    Raises `ConfigurationError` for what is no path, `SnapshotError` when something is there already or it cannot be written.
    """
    if not output.name or output.name == ".." or (why := why_unusable(output)):
        why = "names no new folder" if not output.name or output.name == ".." else why
        raise ConfigurationError(f"output {str(output)!r} {why}; give e.g. 'snapshot'")
    refuse_used(output)
    place = output.absolute()
    with ExitStack() as stack:
        try:
            partial = stack.enter_context(work_folder(place, "making"))
        except OSError as error:
            raise SnapshotError(f"{output} cannot be made: {error.strerror}; choose another place") from None
        yield partial
        make_files_private(partial)
        refuse_used(output)
        try:
            partial.rename(place)
        except OSError as error:
            raise SnapshotError(
                f"{output} cannot be put in its place: {error.strerror}; choose a folder that does not exist yet"
            ) from None


def refuse_used(output: Path) -> None:
    """Raise `SnapshotError` when something is at a snapshot's place already."""
    try:
        used = output.is_symlink() or (output.exists() and (not output.is_dir() or any(output.iterdir())))
    except OSError as error:
        raise SnapshotError(f"{output} cannot be used: {error.strerror}; choose another place") from None
    if used:
        raise SnapshotError(f"{output} is not empty: a snapshot is never overwritten, choose another place")
