"""The settings that the user has made for spark-submit; those of the launcher are defaults beside them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dedup_sdk.errors import ConfigurationError

MASTER: Final = "spark.master"
DEPLOY_MODE: Final = "spark.submit.deployMode"
_LINE: Final = re.compile(r"^[ \t]*(spark\.[^\s=:]+)[ \t]*[=: \t][ \t]*(.*?)\s*$", re.MULTILINE)


def user_settings(arguments: Sequence[str], home: Path | None = None) -> dict[str, str]:
    """Return the settings of spark-submit's arguments, and of spark-defaults.conf unless they name another file.

    `MASTER` and `DEPLOY_MODE` are always there. ``home`` is Spark's folder.

    Raises:
        ConfigurationError: an argument has no value.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--master")
    parser.add_argument("--deploy-mode")
    parser.add_argument("--properties-file", type=Path)
    parser.add_argument("--load-spark-defaults", action="store_true")
    parser.add_argument("--conf", "-c", action="append", default=[])
    try:
        given, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigurationError(f"$DEDUP_SPARK_ARGS: {error}; give e.g. --master yarn") from None
    settings = {
        MASTER: os.environ.get("MASTER", "local[*]"),
        DEPLOY_MODE: os.environ.get("DEPLOY_MODE", "client"),
    }
    if given.properties_file is None or given.load_spark_defaults:
        folder = os.environ.get("SPARK_CONF_DIR") or (home or Path()) / "conf"
        settings |= _in_file(Path(folder) / "spark-defaults.conf")
    if given.properties_file is not None:
        settings |= _in_file(given.properties_file)
    settings |= dict(text.split("=", 1) for text in given.conf if "=" in text)
    options = {MASTER: given.master, DEPLOY_MODE: given.deploy_mode}
    return settings | {name: value for name, value in options.items() if value is not None}


def _in_file(path: Path) -> dict[str, str]:
    """Return the settings of a file of Java's properties; none where Spark itself will say what is wrong with it."""
    try:
        return dict(_LINE.findall(path.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return {}
