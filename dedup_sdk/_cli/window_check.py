"""``dedup window-check``: checks whether a window is long enough for the topic, its producers and a group."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dedup_sdk._admin.properties_file import read_properties
from dedup_sdk._admin.window_question import WindowQuestion
from dedup_sdk._cli.console import printable
from dedup_sdk._cli.options import Bootstrap, ClientConfig, Json, Topic, cluster_client
from dedup_sdk._kafka.assign.window_check import misfits, needed, retention_of
from dedup_sdk._window import length_text
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.producer._required_window import length_ms

_DOES_NOT_FIT = 1
_TIMEOUTS = ("delivery.timeout.ms", "message.timeout.ms")
OfWindow = Annotated[str, typer.Option("--window", help="The window by time, e.g. 7d.", show_default=False)]
OfGroup = Annotated[
    str | None,
    typer.Option("--group", help="The consumer group, for how far it is behind.", show_default=False),
]
Retry = Annotated[
    str,
    typer.Option(
        "--max-retry",
        help="How long after its first attempt a producer may resend a message, restarts included.",
    ),
]
ProducerConfig = Annotated[
    Path | None,
    typer.Option(
        "--producer-config",
        help="A properties file of the producer: its delivery.timeout.ms replaces --max-retry.",
        show_default=False,
    ),
]
Silence = Annotated[
    str,
    typer.Option(
        "--silence",
        help="How long a member of the producer's own group may be away before another repeats its work.",
    ),
]


def window_check(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic,
    window: OfWindow,
    group: OfGroup = None,
    max_retry: Retry = "2m",
    producer_config: ProducerConfig = None,
    silence: Silence = "5m",
    client_config: ClientConfig = None,
    json_output: Json = False,
) -> None:
    """Check whether a window is long enough for its topic, producers and group.

    **Examples**

        dedup window-check --bootstrap localhost:9092 --topic orders --window 7d --group billing
        dedup window-check --bootstrap localhost:9092 --topic orders --window 10m --producer-config producer.properties

    Asks the broker for the topic's retention and timestamps and, with `--group`, for the age of the oldest
    record that the group has not read. A window is too short when a message may be resent after it has
    passed; it is beyond the retention when a lost store cannot be rebuilt from the topic.

    Prints a line for each length of time, and one for each problem; then the exit status is 1. With `--json`
    one object, `{"topic", "window_ms", "needed_ms", "retention_ms", "lag_ms", "misfits": {...}}`.
    """
    window_ms = length_ms("--window", window)
    silence_ms = length_ms("--silence", silence)
    retry_ms = (
        length_ms("--max-retry", max_retry) if producer_config is None else _timeout_ms(producer_config)
    )
    servers, client = cluster_client(bootstrap, client_config)
    question = WindowQuestion(servers, topic, client)
    settings = question.topic_settings()
    lag_ms = 0 if group is None else question.lag_ms(group)
    found = dict(misfits(window_ms, settings, silence_ms, retry_ms=retry_ms, lag_ms=lag_ms))
    needed_ms, retention_ms = needed(settings, silence_ms, retry_ms), retention_of(settings)
    if json_output:
        report = {
            "topic": topic, "window_ms": window_ms, "needed_ms": needed_ms, "retention_ms": retention_ms,
            "lag_ms": None if group is None else lag_ms, "misfits": found,
        }  # fmt: skip
        typer.echo(json.dumps(report))
    else:
        kept = "for good" if retention_ms is None else length_text(retention_ms)
        typer.echo(f"window            {length_text(window_ms)}")
        typer.echo(f"needed            {length_text(needed_ms)}")
        typer.echo(f"kept by the topic {kept}")
        if group is not None:
            typer.echo(printable(f"lag of {group}  {length_text(lag_ms, most_units=2)}"))
        for name, line in found.items():
            typer.echo(printable(f"{name}: {line}"))
        if not found:
            typer.echo("the window fits")
    if found:
        raise typer.Exit(_DOES_NOT_FIT)


def _timeout_ms(path: Path) -> int:
    settings = read_properties(path, option="--producer-config")
    given = [settings[name] for name in _TIMEOUTS if name in settings]
    if not given:
        raise ConfigurationError(
            f"--producer-config {path} has no delivery.timeout.ms; add it, or give --max-retry"
        )
    timeout_ms = length_ms("delivery.timeout.ms", f"{given[0]}ms")
    if not timeout_ms:
        raise ConfigurationError(
            f"--producer-config {path}: delivery.timeout.ms=0 is no time limit; give --max-retry, e.g. 10m"
        )
    return timeout_ms
