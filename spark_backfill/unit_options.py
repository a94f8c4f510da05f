"""The part of the command line that says which records belong together."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final, get_args

from dedup_sdk._units.unit import UNIT_RECORDS, Repeats, Unit, UnitMode
from dedup_sdk.errors import ConfigurationError
from spark_backfill.option_rules import refuse_beside, refuse_without
from spark_backfill.unit_spec import UnitSpec

_WITHOUT: Final = {
    "order": "a unit is judged by IDs that are looked up; leave one of them out",
    "base": "what a unit left hangs on all that came before it; rebuild in full without --base",
    "compact": "units are folded from the history; rebuild in full without --compact",
    "partitions": "a unit lies in one partition, and its IDs are not taken to another",
    "report": "its page is about IDs that are looked up one by one; make it in a run without --unit",
}
"""The options that do not go together with units, and why."""
_OF_UNITS: Final = ("unit_size_header", "unit_end_header", "unit_mode", "unit_repeats", "unit_records")


def add_unit_options(add: Callable[..., Any]) -> None:
    """Tell a parser of the options; ``add`` is its ``add_argument``."""
    usual = Unit()
    add(
        "--unit",
        metavar="SPEC",
        help=f"For Lookup(unit=...): what names the unit of a record, e.g. {usual.id}; records of one stand "
        "or fall together.",
    )
    add(
        "--unit-size-header",
        metavar="NAME",
        help=f"With --unit: the header that says how many records a unit has [default: {usual.size_header}].",
    )
    add(
        "--unit-end-header",
        metavar="NAME",
        help=f"With --unit: the header that marks a unit's last record [default: {usual.end_header}].",
    )
    add(
        "--unit-mode",
        metavar="MODE",
        help=f"With --unit: {' or '.join(get_args(UnitMode))} [default: {get_args(UnitMode)[0]}].",
    )
    add(
        "--unit-repeats",
        metavar="WHAT",
        help=f"With --unit: {' or '.join(get_args(Repeats))} a record whose ID an earlier one of its unit "
        f"bears [default: {usual.repeats}].",
    )
    add(
        "--unit-records",
        type=int,
        metavar="N",
        help=f"With --unit: a unit with more records fails [default: {UNIT_RECORDS}].",
    )


def read_units(given: argparse.Namespace) -> UnitSpec | None:
    """Read the options; None: no record belongs to a unit.

    Raises:
        ConfigurationError: one line on options that are missing, or do not go together.
    """
    if given.unit is None:
        remedy = f"say what names a record's unit, e.g. --unit {Unit().id}"
        refuse_without(given, _OF_UNITS, "--unit", remedy)
        return None
    refuse_beside(given, _WITHOUT, "--unit")
    for name in ("id", "window"):
        if getattr(given, name) is None:
            raise ConfigurationError(f"--unit needs --{name}: give that of the consumer's Lookup")
    usual = Unit()
    spec = UnitSpec(
        id=given.id,
        unit=given.unit,
        size_header=_or(given.unit_size_header, usual.size_header),
        end_header=_or(given.unit_end_header, usual.end_header),
        mode=_or(given.unit_mode, "all-or-nothing"),
        repeats=_or(given.unit_repeats, usual.repeats),
        window=given.window,
        records=_or(given.unit_records, usual.records),
    )
    # Whatever is wrong is told before anything is asked.
    _ = spec.keys
    return spec


def _or(given: Any, usual: Any) -> Any:
    return usual if given is None else given
