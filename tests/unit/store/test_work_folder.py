from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dedup_sdk._store.paths import work_folder

_KILLED = """
import os, sys
from pathlib import Path
from dedup_sdk._store.paths import work_folder
with work_folder(Path(sys.argv[1]), "fetch") as folder:
    (folder / "file").write_text("left")
    os.kill(os.getpid(), 9)
"""


def names(folder: Path) -> list[str]:
    """The names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_it_is_gone_at_the_end(tmp_path: Path) -> None:
    """It lies beside its target, is private, and is removed, unless it was moved to where it belongs."""
    with work_folder(tmp_path / "store", "fetch") as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o077 == 0
    assert names(tmp_path) == []
    with work_folder(tmp_path / "store", "fetch") as folder:
        folder.rename(tmp_path / "store")
    assert names(tmp_path) == ["store"]


def test_what_a_killed_run_left_goes_with_the_next(tmp_path: Path) -> None:
    """A folder that nobody has locked any more is removed once it is a minute old.

    One in use, and one for something else, stay.
    """
    store = tmp_path / "store"
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(store)], check=False, timeout=60)
    assert killed.returncode == -9
    (left,) = names(tmp_path)
    (tmp_path / ".store2.fetch-abc").mkdir()
    os.utime(tmp_path / ".store2.fetch-abc", (0, 0))
    with work_folder(store, "fetch") as mine:
        assert left in names(tmp_path)
        os.utime(mine, (0, 0))
        os.utime(tmp_path / left, (0, 0))
        with work_folder(store, "fetch"):
            assert left not in names(tmp_path)
            assert mine.is_dir()
    assert names(tmp_path) == [".store2.fetch-abc"]
