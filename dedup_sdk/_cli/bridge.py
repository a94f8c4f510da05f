"""``dedup bridge``: copies records between topics, each with one dedup ID that stays the same in every resend."""

import json
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import typer

from dedup_sdk._admin.client_config import client_settings
from dedup_sdk._cli.console import printable
from dedup_sdk._cli.options import CLIENT_CONFIG, ClientConfig, Json, Quiet
from dedup_sdk._kafka.client.closing import stopped_by
from dedup_sdk.bridge._bridge import BATCH_RECORDS, Bridge
from dedup_sdk.errors import ConfigurationError

_INTERRUPTED = 130
_FROM_CONFIG = "--from-client-config"
_TO_CONFIG = "--to-client-config"
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help=f"Bootstrap servers of the source, HOST:PORT [default: bootstrap.servers of {_FROM_CONFIG}].",
        show_default=False,
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        help=f"Bootstrap servers of the target, HOST:PORT [default: bootstrap.servers of {_TO_CONFIG}].",
        show_default=False,
    ),
]
FromConfig = Annotated[
    list[str] | None,
    typer.Option(
        _FROM_CONFIG,
        metavar="FILE|KEY=VALUE",
        help=f"As {CLIENT_CONFIG}, for the client of the source alone; it replaces a setting of {CLIENT_CONFIG}.",
        show_default=False,
    ),
]
ToConfig = Annotated[
    list[str] | None,
    typer.Option(
        _TO_CONFIG,
        metavar="FILE|KEY=VALUE",
        help=f"As {CLIENT_CONFIG}, for the client of the target alone; it replaces a setting of {CLIENT_CONFIG}.",
        show_default=False,
    ),
]
OfTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--topics",
        help="A topic, or a pattern that begins with ^; may be repeated [default: all].",
        show_default=False,
    ),
]
Rename = Annotated[
    str,
    typer.Option(
        "--rename", help="The topic's name at the target; {topic} stands for its name at the source."
    ),
]
OfId = Annotated[str, typer.Option("--id", help="The ID spec; to add IDs it must be header:NAME.")]
Detection = Annotated[
    bool,
    typer.Option(
        "--duplicate-detection/--no-duplicate-detection",
        help="Whether records without an ID get one made of their position and content in the source.",
    ),
]
Rekey = Annotated[
    bool,
    typer.Option(
        "--rekey-by-id", help="The ID becomes the record's key, so that equal IDs go to the same partition."
    ),
]
Partitions = Annotated[
    Literal["key", "same"],
    typer.Option("--partitions", help="The target partition: by the key, or with the same number."),
]
OfTransactions = Annotated[
    Literal["auto", "always", "never"],
    typer.Option("--transactions", help="auto: each batch is one transaction where the target allows it."),
]
Refused = Annotated[
    Literal["fail", "skip"],
    typer.Option("--on-refused", help="A record that the target refuses: end, and name it; or leave it out."),
]
OfGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="The consumer group [default: the client config's group.id, else made of the target and --rename].",
        show_default=False,
    ),
]
BatchRecords = Annotated[int, typer.Option("--batch-records", min=1, help="The most records of a batch.")]
UntilEnd = Annotated[
    bool, typer.Option("--until-end", help="End when every record that the topics have now is copied.")
]
Every = Annotated[
    float,
    typer.Option("--report-every", min=0.1, max=86_400, help="Seconds between two lines of statistics."),
]


def bridge(
    *,
    source: From = None,
    target: To = None,
    topics: OfTopics = None,
    rename: Rename = "{topic}",
    id_text: OfId = "header:dedup-id",
    duplicate_detection: Detection = True,
    rekey_by_id: Rekey = False,
    partitions: Partitions = "key",
    transactions: OfTransactions = "auto",
    on_refused: Refused = "fail",
    group: OfGroup = None,
    batch_records: BatchRecords = BATCH_RECORDS,
    until_end: UntilEnd = False,
    report_every: Every = 10.0,
    client_config: ClientConfig = None,
    source_config: FromConfig = None,
    target_config: ToConfig = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    r"""Move records between clusters or topics, each with one ID however often it is sent.

    **Examples**

        dedup bridge --from old:9092 --to new:9092 --topics orders
        dedup bridge --from old:9092 --to-client-config new.properties --topics '^eu\..*'
        dedup bridge --from kafka:9092 --to kafka:9092 --topics orders --rename orders.by-id --rekey-by-id --until-end

    Headers, key, value and timestamp are kept. A record without a dedup ID gets one made of its position in the source
    and its content, the same however often it is sent: kill the bridge at any moment, start it again, and the target's
    DedupConsumer sees each record once. Within one cluster the target also has each record once. Several bridges with
    the same options share the work.

    Statistics go to stderr. SIGTERM ends it after the current batch, with exit status 0. With `--json` the last
    line is one object, `{"copied", "named", "skipped", "batches", "repeated", "made_anew", "gone",
    "nameless_headers"}`.
    """
    moving = Bridge(
        _settings("--from", source, client_config, source_config),
        _settings("--to", target, client_config, target_config),
        topics=topics or "^.*", rename=rename, id=id_text, use_duplicate_detection=duplicate_detection,
        rekey_by_id=rekey_by_id, partitions=partitions, transactions=transactions,
        on_refused=on_refused, group=group, batch_records=batch_records,
    )  # fmt: skip
    with _saying(quiet=quiet), stopped_by((signal.SIGTERM, signal.SIGINT), moving.stop) as caught:
        try:
            moving.run(until_end=until_end, report=None if quiet else _report, report_every=report_every)
        finally:
            if not quiet:
                _report(moving)
    if json_output:
        typer.echo(json.dumps(moving.counters.as_dict()))
    if signal.SIGINT in caught:
        raise typer.Exit(_INTERRUPTED)


def _settings(
    option: str, servers: str | None, common: list[str] | None, own: list[str] | None
) -> dict[str, str]:
    """Return the settings of one of the two clients. No message shows a value, which may be a password."""
    config = f"{option}-client-config"
    settings = client_settings(CLIENT_CONFIG, common or []) | client_settings(config, own or [])
    if servers is not None:
        settings["bootstrap.servers"] = servers
    if not settings.get("bootstrap.servers", "").strip():
        raise ConfigurationError(
            f"{option} names no cluster; give bootstrap servers, e.g. localhost:9092, or bootstrap.servers in {config}"
        )
    return settings


def _report(moving: Bridge) -> None:
    counters = moving.counters
    parts = [f"{counters.copied:,} copied", f"{counters.named:,} of them given an ID"]
    if counters.skipped:
        parts.append(f"{counters.skipped:,} left out")
    if counters.repeated:
        parts.append(f"{counters.repeated:,} batches started again")
    if counters.nameless_headers:
        parts.append(f"{counters.nameless_headers:,} headers not copied")
    typer.echo(f"bridge: {', '.join(parts)}; {moving.lag():,} behind", err=True)


class _ToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(printable(record.getMessage()) + "\n")


@contextmanager
def _saying(*, quiet: bool) -> Iterator[None]:
    """Print the bridge's log lines on stderr."""
    log, handler = logging.getLogger("dedup_sdk"), _ToStderr()
    former = log.level
    log.addHandler(handler)
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(former)
