"""Settings that the job makes itself, and the values never shown of the others."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError

_ISOLATION: Final = "read_committed"
_SECRET_NAME: Final = re.compile(r"pass|pwd|secret|token|credential|jaas|key|auth", re.IGNORECASE)
_NAMES_FILE: Final = (".location", ".keytab", ".file")
_QUOTED: Final = re.compile(r"""["']([^"']+)["']""")
_SHORTEST_SECRET: Final = 3


def take_consumers_own(settings: dict[str, str]) -> tuple[str | None, str | None]:
    """Take a consumer's own settings out, so that its file serves the job, too; return its servers and its group.

    Those are left out that ask for the job's own behaviour, or have no effect on it.

    Raises:
        ConfigurationError: it reads records of aborted transactions.
    """
    if settings.pop("isolation.level", _ISOLATION) != _ISOLATION:
        raise ConfigurationError(
            f"--client-config isolation.level cannot be set: the job reads {_ISOLATION}, or IDs of aborted records "
            "would be taken for seen"
        )
    for name in ("auto.offset.reset", "enable.auto.commit"):
        settings.pop(name, None)
    return settings.pop("bootstrap.servers", None), settings.pop("group.id", None)


def files_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the absolute paths of the files and folders that are here, of the settings that name one."""
    return {
        name: str(Path(value).absolute())
        for name, value in settings.items()
        if name.endswith(_NAMES_FILE) and value and os.path.exists(value)  # noqa: PTH110 (a path with a NUL is none)
    }


def read_options(texts: Sequence[str]) -> dict[str, str]:
    """Read the texts of ``--read-option``.

    Raises:
        ConfigurationError: one of them is no such text; no value is shown.
    """
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigurationError(
                f"--read-option {shown(text)} is no setting; write --read-option NAME=VALUE"
            )
        settings[name] = value
    return settings


def secrets_of(*settings: Mapping[str, str]) -> frozenset[str]:
    """Return the values that no line may show.

    Those of settings whose name tells of a secret, and the texts quoted in them.
    """
    found: set[str] = set()
    for name, value in ((name, value) for each in settings for name, value in each.items()):
        if _SECRET_NAME.search(name):
            found |= {value, *_QUOTED.findall(value)}
    return frozenset(value for value in found if len(value) >= _SHORTEST_SECRET)
