"""Options that belong to another one: they need it, or do not go with it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

from dedup_sdk.errors import ConfigurationError


def refuse_without(given: argparse.Namespace, names: Iterable[str], owner: str, remedy: str) -> None:
    """Raise `ConfigurationError` for the first of these options that was given without its ``owner``.

    Options go by their names in ``given``.
    """
    for name in names:
        if getattr(given, name) is not None:
            raise ConfigurationError(f"--{name.replace('_', '-')} needs {owner}: {remedy}")


def refuse_beside(given: argparse.Namespace, reasons: Mapping[str, str], owner: str) -> None:
    """Raise `ConfigurationError`, with the reason, for the first of these options that was given beside ``owner``."""
    for name, why in reasons.items():
        if getattr(given, name):
            raise ConfigurationError(f"--{name} and {owner} do not go together: {why}")
