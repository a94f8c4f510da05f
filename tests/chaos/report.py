"""The result of a run: one object, and one line for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.chaos.oracle import Judgement
from tests.chaos.stage import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of one scenario.

    Attributes:
        scenario: its name.
        choice: how it was played.
        judgement: the oracle's findings.
        faults: by kind.
        resent: records that the sender sent more than once.
        rebalances: callbacks of all workers.
        seconds: how long it took.
        stuck: where the workers stood, where messages were left and nothing was handled any more, where one had no
            partition for long, or where one did not end in order.
        ended: workers that ended by themselves, where none may.
    """

    scenario: str
    choice: Choice
    judgement: Judgement
    faults: dict[str, int]
    resent: int
    rebalances: int
    seconds: float
    stuck: tuple[str, ...] = ()
    ended: int = 0
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def broken(self) -> dict[str, int]:
        """The promises that were broken, with how often."""
        ended = {"ended": self.ended} if self.ended else {}
        return {**self.judgement.broken(), **ended}

    @property
    def faultless(self) -> bool:
        """Whether no fault came, so that promises were kept without need."""
        return not any(self.faults.values())

    def as_dict(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        judged = self.judgement
        return {
            "scenario": self.scenario,
            "seed": self.choice.seed,
            "protocol": self.choice.protocol,
            "without": self.choice.broken,
            "records": judged.records,
            "messages": judged.messages,
            "resent": self.resent,
            "handled": judged.handled,
            "lost": judged.lost,
            "doubled": judged.doubled,
            "doubled_bound": judged.doubled_bound,
            "unexplained": judged.unexplained,
            "disordered": judged.disordered,
            "premature": judged.premature,
            "trespassed": judged.trespassed,
            "unsettled": judged.unsettled,
            "regressed": judged.regressed,
            "unsent": judged.unsent,
            "unpersisted": judged.unpersisted,
            "recopied": judged.recopied,
            **judged.analysed,
            "ended": self.ended,
            "faults": self.faults,
            "rebalances": self.rebalances,
            "seconds": round(self.seconds, 1),
            "stuck": bool(self.stuck),
            "examples": list(judged.examples),
            "promises_kept": not self.broken,
        }

    def line(self) -> str:
        """One line for people."""
        judged, choice = self.judgement, self.choice
        outcome = (
            "ok" if not self.broken else "BROKEN " + ", ".join(f"{k} {v}" for k, v in self.broken.items())
        )
        outcome += ", stuck" if self.stuck else ""
        outcome += ", but no fault came, which shows nothing" if self.faultless else ""
        without = f" without {choice.broken}" if choice.broken else ""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items())) or "no faults"
        return (
            f"{self.scenario:16} {choice.protocol:11} seed {choice.seed}{without}: {judged.records:,} records, "
            f"{judged.handled:,} handled, {judged.lost} lost, {judged.doubled} doubled (bound {judged.doubled_bound}); "
            f"{faults}; {self.rebalances} rebalances; {self.seconds:.0f} s: {outcome}"
        )
