"""The commands of ``dedup``, put together."""

from __future__ import annotations

import typer

from dedup_sdk.cli.backfill import backfill
from dedup_sdk.cli.bridge import bridge
from dedup_sdk.cli.demo import demo
from dedup_sdk.cli.dump import dump
from dedup_sdk.cli.lookup import lookup
from dedup_sdk.cli.redrive import redrive
from dedup_sdk.cli.report import report
from dedup_sdk.cli.restore import restore
from dedup_sdk.cli.rewind import rewind
from dedup_sdk.cli.snapshot import snapshot
from dedup_sdk.cli.snapshots import snapshots_app
from dedup_sdk.cli.stats import stats
from dedup_sdk.cli.window_check import window_check

app = typer.Typer(
    name="dedup",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    epilog="Exit status: 0 done; 1 failed, or nothing was found; 2 wrong usage; 130 ended by Ctrl-C.",
)


@app.callback()
def about() -> None:
    r"""Show, rebuild and look into the key stores by which consumers know what they have seen.

    **Examples**

        dedup demo --records 20000
        dedup backfill --bootstrap localhost:9092 --topic orders --group billing \
            --id header:dedup-id --window 7d --output snapshot
        dedup restore --snapshot snapshot --store var/dedup
        dedup snapshots list snapshots
        dedup lookup --store var/dedup --topic orders order-4711

    What a command does in detail: `dedup COMMAND --help`.
    """


app.command()(demo)
app.command(
    # Its own parser reads the options, so that they are the same under spark-submit.
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)(backfill)
app.command()(report)
app.command()(restore)
app.command()(snapshot)
app.add_typer(snapshots_app, name="snapshots")
app.command()(redrive)
app.command()(rewind)
app.command()(window_check)
app.command()(bridge)
app.command()(dump)
app.command()(lookup)
app.command()(stats)
