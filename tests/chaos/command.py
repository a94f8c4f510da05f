"""``python -m tests.chaos``: plays scenarios on a real broker and says whether the promises were kept."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from dedup_sdk.errors import DedupError
from tests.chaos.bed import Bed
from tests.chaos.crew import ROOT
from tests.chaos.deadline import within
from tests.chaos.director import direct
from tests.chaos.forgetful import ForgetfulBrokerError
from tests.chaos.options import BROKERS, PROTOCOLS, Protocol
from tests.chaos.report import Report
from tests.chaos.sabotage import BROKEN
from tests.chaos.scenario import Scenario
from tests.chaos.soak import SOAK
from tests.chaos.stage import Choice
from tests.chaos.table import SCENARIOS
from tests.support.repeating import FOLDER, Failure, hand_over

_ALL: Final = "all"
_OVERHEAD_S: Final = 240.0
"""Seconds that a scenario may take besides twice the time of its faults.

To start, to handle the rest, to be looked at.
"""
_BROKERS: Final = 2
"""On so many brokers a scenario is played, where one forgets commits (see `forgetful`)."""
_START_S: Final = 300.0
_CLOSE_S: Final = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Play the scenarios; return 0 when every promise was kept, 1 when one was broken, 2 when nobody can tell.

    Where failures are repeated alone (see `repeating`), each scenario that failed is handed over, and the status is 0.
    """
    asked = parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO if asked.verbose else logging.WARNING,
        format="chaos: %(message)s",
        stream=sys.stderr,
    )
    # A cut connection is nothing to warn of.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    sys.stderr.write(f"chaos: seed {asked.seed}\n")
    reports: list[Report] = []
    failures: list[Failure] = []
    unjudged = False
    try:
        with ExitStack() as open_things:
            bed = start_bed(open_things, asked)
            for scenario, choice in _plan(asked):
                report, bed = _play_on_brokers(scenario, choice, bed, open_things, asked)
                if report is not None:
                    reports.append(report)
                undecided = report is None or bool(
                    (report.stuck or report.faultless) and not report.choice.broken
                )
                unjudged = unjudged or undecided
                if undecided or (report is not None and report.broken):
                    failures.append(_failure(scenario, choice, report, asked))
            end_bed(open_things)
    except DedupError as error:
        sys.stderr.write(f"chaos: {error}\n")
        return 2
    if asked.json and len(reports) > 1:
        sys.stdout.write(json.dumps(summary(reports, asked.seed)) + "\n")
    if failures and not asked.broken and hand_over(failures, os.environ.get(FOLDER, "")):
        return 0
    if any(report.broken for report in reports):
        return 1
    return 2 if unjudged else 0


def _play_on_brokers(
    scenario: Scenario, choice: Choice, bed: Bed, open_things: ExitStack, asked: argparse.Namespace
) -> tuple[Report | None, Bed]:
    """Play one scenario, once more where the broker forgot commits; return its report and the next one's broker."""
    for _ in range(_BROKERS):
        forgot = False
        try:
            report = play(scenario, choice, bed, asked)
            if report is not None:
                return report, bed
        except ForgetfulBrokerError as error:
            _tell_unjudged(scenario, error)
            forgot = True
        # The broker may be half way through a fault, or never answer for a group again.
        end_bed(open_things)
        bed = start_bed(open_things, asked)
        if not forgot:
            break
    return None, bed


def _failure(scenario: Scenario, choice: Choice, report: Report | None, asked: argparse.Namespace) -> Failure:
    command = [
        sys.executable,
        "-m",
        "tests.chaos",
        "--scenario",
        scenario.name,
        "--protocol",
        choice.protocol,
    ]
    command += ["--seed", str(choice.seed), "--minutes", str(choice.seconds / 60), "--broker", asked.broker]
    command += ["--rate", str(choice.rate)] if choice.rate else []
    command += ["--no-mount"] * asked.no_mount
    lines = [f"{scenario.name}: could not be judged"] if report is None else [report.line(), *_told(report)]
    name = f"tests.chaos {scenario.name}, {choice.protocol}, seed {choice.seed}"
    return Failure(name=name, trace="\n".join(lines), command=tuple(command), folder=str(ROOT))


def start_bed(open_things: ExitStack, asked: argparse.Namespace) -> Bed:
    """Start a broker, which ends with ``open_things``."""
    with within(_START_S, "the start of the broker"):
        return open_things.enter_context(Bed(asked.seed, asked.broker))


def end_bed(open_things: ExitStack) -> None:
    """End the broker."""
    with within(_CLOSE_S, "the end of the broker"):
        open_things.close()


def play(scenario: Scenario, choice: Choice, bed: Bed, asked: argparse.Namespace) -> Report | None:
    """Play one scenario and write down its report.

    None when that could not be judged, `ForgetfulBrokerError` when it is the broker's fault.
    """
    try:
        with within(2 * choice.seconds + _OVERHEAD_S, scenario.name):
            report = direct(scenario, choice, bed, keep=asked.keep)
    except ForgetfulBrokerError:
        raise
    except (KafkaException, OSError, RuntimeError) as error:
        _tell_unjudged(scenario, error)
        return None
    sys.stderr.write(report.line() + "\n")
    sys.stderr.writelines(f"  {line}\n" for line in _told(report))
    if asked.json:
        sys.stdout.write(json.dumps(report.as_dict()) + "\n")
        sys.stdout.flush()
    return report


def _tell_unjudged(scenario: Scenario, error: Exception) -> None:
    sys.stderr.write(f"{scenario.name}: could not be judged: {error}\n")
    sys.stderr.writelines(f"  {note}\n" for note in getattr(error, "__notes__", ()))


def _told(report: Report) -> Iterable[str]:
    """Return lines that explain a report; of a broken twin, expected to break promises, no more than the names."""
    examples = report.judgement.examples
    if report.choice.broken:
        return [example.splitlines()[0] for example in examples]
    return [*examples, *report.stuck]


def summary(reports: Sequence[Report], seed: int) -> dict[str, object]:
    """Return the totals of several scenarios as one object."""
    faults: dict[str, int] = {}
    for report in reports:
        for kind, count in report.faults.items():
            faults[kind] = faults.get(kind, 0) + count
    names = ("records", "handled", "lost", "doubled", "doubled_bound", "unexplained")
    return {
        "scenario": _ALL,
        "seed": seed,
        **{name: sum(report.as_dict()[name] for report in reports) for name in names},
        "faults": faults,
        "broken": sorted({report.scenario for report in reports if report.broken}),
        "promises_kept": not any(report.broken for report in reports),
    }


def _plan(asked: argparse.Namespace) -> Iterable[tuple[Scenario, Choice]]:
    chosen = list(SCENARIOS.values()) if asked.scenario == _ALL else [SCENARIOS[asked.scenario]]
    share, shares = asked.share
    for number, scenario in enumerate(chosen):
        if number % shares != share - 1:
            continue
        if scenario.copies_the_disk and asked.broker in {"container", "three"}:
            sys.stderr.write(
                f"{scenario.name}: not played, because the disk is out of reach; take --broker jars\n"
            )
            continue
        for protocol in _protocols(asked, scenario, number):
            minutes = asked.soak_minutes if scenario is SOAK and asked.scenario == _ALL else asked.minutes
            minutes = asked.minutes if minutes is None else minutes
            seconds = scenario.short_s if minutes is None else 60 * minutes
            broken = scenario.broken if asked.broken == "its-own" else asked.broken
            yield (
                scenario,
                Choice(
                    seed=asked.seed,
                    seconds=seconds,
                    protocol=protocol,
                    broken=broken,
                    rate=asked.rate,
                    mount=not asked.no_mount,
                ),
            )


def _protocols(asked: argparse.Namespace, scenario: Scenario, number: int) -> list[Protocol]:
    if asked.protocol == _ALL:
        return list(scenario.protocols)
    if asked.protocol == "rotate":
        return [scenario.protocols[(asked.seed + number) % len(scenario.protocols)]]
    return [asked.protocol]


def _share(text: str) -> tuple[int, int]:
    share, _, shares = text.partition("/")
    if not (share.isdigit() and shares.isdigit() and 1 <= int(share) <= int(shares)):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N, with K from 1 to N")
    return int(share), int(shares)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    options = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Real consumers on a real broker under faults, and an oracle that says what was lost or doubled.",
        epilog="scenarios: " + "; ".join(f"{each.name}: {each.summary}" for each in SCENARIOS.values()),
    )
    options.add_argument("--scenario", choices=[*SCENARIOS, _ALL], default=_ALL)
    options.add_argument("--seed", type=int, default=1, help="of the faults, the messages and the protocols")
    options.add_argument("--minutes", type=float, help="how long faults go on; some seconds when left out")
    options.add_argument(
        "--rate",
        type=float,
        default=0.0,
        help="new messages a second, with handlers that take no time and large transactions",
    )
    options.add_argument("--soak-minutes", type=float, help="the same of the soak, where all are played")
    options.add_argument(
        "--protocol", choices=[*PROTOCOLS, _ALL, "rotate"], default="rotate", help="rotate: by the seed"
    )
    options.add_argument(
        "--share",
        type=_share,
        default=(1, 1),
        metavar="K/N",
        help="every N-th scenario, from the K-th on: N commands beside each other play all of them",
    )
    options.add_argument(
        "--broken",
        choices=[*BROKEN, "its-own"],
        default="",
        help="take a protection away (its-own: the one that the scenario is about); exit 1 is expected then",
    )
    options.add_argument(
        "--broker",
        choices=BROKERS,
        default="jars",
        help="where the broker comes from: its jars, a container of the image in DEDUP_TEST_KAFKA_IMAGE, (older) its "
        "jars with the transactions of Kafka before 4.0, or (three) a cluster of three, of which faults meet the "
        "coordinator of transactions or of groups",
    )
    options.add_argument(
        "--json", action="store_true", help="one object a scenario on stdout, the totals last"
    )
    options.add_argument("--keep", type=Path, help="a folder that keeps journals, logs and stores")
    options.add_argument(
        "--no-mount", action="store_true", help="full and bad disks by a limit of what a process may write"
    )
    options.add_argument("--verbose", action="store_true", help="say what happens")
    return options
