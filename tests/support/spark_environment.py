"""The archive for a cluster's workers: our packages and all that they need, as one archive."""

from __future__ import annotations

import shutil
import tomllib
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
# Half of the bytes to send, and imported by nobody here.
_UNUSED_FOLDERS = {"..", "__pycache__", "include", "src", "tests"}
_UNUSED_FILES = "libarrow_flight"


def make_environment_archive(folder: Path) -> Path:
    """Write the files of ``pip install --target`` for ``dedup-sdk[cluster]`` as ``environment.zip``; return its path.

    The packages of the wheel are those of this checkout, all others the installed ones, without large parts that
    nobody needs.
    """
    packages = folder / "environment"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, packages / Path(name).name, ignore=unwanted)
    # As this checkout says, not as it was when it was installed.
    project = settings["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["cluster"]]
    for each in _closure(needed, set(), set()):
        _copy_files(each, packages)
    archive = folder / "environment.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for path in sorted(packages.rglob("*")):
            target.write(path, path.relative_to(packages))
    shutil.rmtree(packages)
    return archive


def _closure(requirements: Iterable[str], extras: set[str], seen: set[str]) -> Iterator[Distribution]:
    """The distributions of these requirements, and those that they need, each once."""
    for text in requirements:
        needed = Requirement(text)
        wanted = needed.marker is None or any(
            needed.marker.evaluate({"extra": extra}) for extra in ["", *extras]
        )
        if wanted and needed.name not in seen:
            seen.add(needed.name)
            found = distribution(needed.name)
            yield found
            yield from _closure(found.requires or (), needed.extras, seen)


def _copy_files(found: Distribution, packages: Path) -> None:
    for file in found.files or ():
        source = Path(str(file.locate()))
        unused = _UNUSED_FOLDERS & set(file.parts) or file.name.startswith(_UNUSED_FILES)
        if unused or not source.is_file():
            continue
        place = packages / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
