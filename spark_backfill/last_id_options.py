"""The options of the command line for `LastId`: how IDs are compared with the last one of their source."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from dedup_sdk._strategy import IDLE_DAYS, REORDER_DEPTH
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError
from spark_backfill.last_id_spec import LastIdSpec
from spark_backfill.option_rules import refuse_beside, refuse_without

_WITHOUT: Final = {
    "base": "what a source remembers cannot be added to; rebuild in full without --base",
    "compact": "what a source remembers is folded from the history; rebuild in full without --compact",
    "partitions": "a source lies in one partition, and its IDs are not taken to another",
    "report": "its page is about IDs that are looked up; make it in a run without --order",
}
"""The options that do not go together with comparing, and why."""
_OF_COMPARING: Final = ("source_id", "reorder_depth", "otherwise", "otherwise_window")


def add_last_id_options(add: Callable[..., Any]) -> None:
    """Tell a parser of the options; ``add`` is its ``add_argument``."""
    add(
        "--order",
        metavar="NAME",
        help="For LastId: how two IDs compare, e.g. integer, ulid, snowflake(epoch_ms=1420070400000), or "
        f"py:MODULE:NAME; --window is then how long a silent source is remembered ({IDLE_DAYS}d where "
        "it is not given).",
    )
    add(
        "--source-id",
        metavar="SPEC",
        help="With --order: the ID of the source inside a partition, e.g. header:producer [default: the "
        "partition is one source].",
    )
    add(
        "--reorder-depth",
        type=int,
        metavar="N",
        help=f"With --order: how much below its last ID a source remembers [default: {REORDER_DEPTH}].",
    )
    add(
        "--otherwise",
        metavar="SPEC",
        help="With --order: the ID that LastId(otherwise=Lookup(...)) looks up in doubt, e.g. "
        "header:order-id; every record leaves a mark for it.",
    )
    add(
        "--otherwise-window",
        metavar="WINDOW",
        help="With --otherwise: how long that ID is remembered, a length of time, e.g. 7d.",
    )


def read_last_id_spec(given: argparse.Namespace) -> LastIdSpec | None:
    """Read the options, and put the usual window into ``given`` where there is none; None: IDs are looked up.

    Raises:
        ConfigurationError: one line on options that are missing, or do not go together.
    """
    if given.order is None:
        remedy = "it is an option of LastId; say how IDs compare, e.g. --order integer"
        refuse_without(given, _OF_COMPARING, "--order", remedy)
        return None
    refuse_beside(given, _WITHOUT, "--order")
    if given.window is None:
        given.window = f"{IDLE_DAYS}d"
    elif Window.parse(given.window).count is not None:
        raise ConfigurationError(
            f"--window {given.window}: with --order it is how long a silent source is remembered; give a "
            f"length of time alone, e.g. {IDLE_DAYS}d"
        )
    if given.id is None:
        raise ConfigurationError("--order needs --id: say which IDs are compared, e.g. --id header:sequence")
    _check_second(given)
    depth = REORDER_DEPTH if given.reorder_depth is None else given.reorder_depth
    spec = LastIdSpec(
        id=given.id,
        order=given.order,
        source=given.source_id,
        window=given.window,
        reorder_depth=depth,
        otherwise=given.otherwise,
        otherwise_window=given.otherwise_window,
    )
    # Whatever is wrong is told before anything is asked.
    strategy = spec.strategy
    second = strategy.otherwise
    return LastIdSpec(
        id=str(strategy.id),
        order=given.order,
        source=None if strategy.source is None else str(strategy.source),
        window=str(strategy.window),
        reorder_depth=depth,
        otherwise=None if second is None else str(second.id),
        otherwise_window=None if second is None else str(second.window),
    )


def _check_second(given: argparse.Namespace) -> None:
    """Check that a second opinion has an ID and a length of time, or neither is given."""
    if given.otherwise is None:
        remedy = "say which ID a second opinion looks up, e.g. --otherwise header:order-id"
        refuse_without(given, ("otherwise_window",), "--otherwise", remedy)
        return
    if given.otherwise_window is None:
        raise ConfigurationError(
            "--otherwise needs --otherwise-window: give the window of the consumer's otherwise=Lookup(...), e.g. 7d"
        )
    if Window.parse(given.otherwise_window).count is not None:
        raise ConfigurationError(
            f"--otherwise-window {given.otherwise_window}: a second opinion's window is a length of time "
            "alone; give e.g. 7d"
        )
