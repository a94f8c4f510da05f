"""What a demo found: one flat object, its verdict, and why it failed if it did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dedup_sdk.demo.oracle import Judgement
    from dedup_sdk.demo.stores import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The demo's figures, in the order of the JSON object.

    Attributes:
        broker: ``kafka``: a real one.
        records: in the topic before anything was resent on purpose.
        distinct_ids: dedup IDs among them.
        duplicates_in_topic: records beyond the first of their ID.
        handled: calls of the workers' handlers for those records.
        lost: IDs that no handler saw.
        doubled: calls beyond the first of their ID.
        doubled_bound: how many of them the SIGKILL excuses at most (see `dedup_sdk.demo.oracle`).
        resent: flights sent again after all stores were thrown away and rebuilt.
        resent_handled: calls of handlers for them.
        rebuild_records_per_second: records of the topic by the seconds of the whole Spark job, its start included.
        marks: IDs that the rebuilt key store remembers.
        stores_equal: whether the rebuilt marks are those that the lived stores held.
        seconds: all five steps.
    """

    broker: str
    records: int
    distinct_ids: int
    duplicates_in_topic: int
    handled: int
    lost: int
    doubled: int
    doubled_bound: int
    resent: int
    resent_handled: int
    rebuild_records_per_second: int
    marks: int
    stores_equal: bool
    seconds: float
    failures: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every promise held."""
        return not self.failures

    def as_json(self) -> dict[str, object]:
        """The figures; ``failures`` is among them only when there are any."""
        figures = asdict(self)
        if self.passed:
            del figures["failures"]
        return figures


def failures(judgement: Judgement, comparison: Comparison, resent_handled: int) -> tuple[str, ...]:
    """Name each promise that did not hold, with its figures."""
    broken = {
        f"{judgement.lost} flights were lost": judgement.lost > 0,
        f"{judgement.doubled} flights were handled twice, and the SIGKILL excuses {judgement.doubled_bound}": (
            judgement.doubled > judgement.doubled_bound
        ),
        f"{judgement.unexplained} flights were handled twice far from the SIGKILL": judgement.unexplained > 0,
        f"the rebuilt marks of partitions {list(comparison.differing)} differ from the lived ones": (
            not comparison.equal
        ),
        f"{resent_handled} resent flights were handled again": resent_handled > 0,
    }
    return tuple(failure for failure, happened in broken.items() if happened)
