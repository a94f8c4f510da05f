"""All that can be counted or measured in a consumer: one registry, of which everything else is made.

`METRICS` has an entry for each metric, with its kind, unit and labels, one sentence of meaning, and one on what to do
when it grows. `Counters.as_dict`, `DedupConsumer.metrics`, the tables of the pages and the exporters are made of these
entries; none of them has a name of its own. `tests/unit/test_metrics.py` holds them equal.

The labels are bounded: topics, partitions, and words of this package. No label is an ID, a key or a value of a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from dedup_sdk._record import VerdictKind

if TYPE_CHECKING:
    from dedup_sdk._observe import Counters, Histogram, PartitionCounters, PartitionStatus

Kind = Literal["counter", "gauge", "histogram"]
Unit = Literal["", "seconds", "bytes"]
Label = Literal["topic", "partition", "verdict", "reason", "event", "name", "state", "hindrance"]

EventName = Literal[
    "topic-recreated", "rule-changed", "log-truncated", "offset-out-of-range", "recovery-timeout", "store-locked",
    "window-beyond-retention", "window-too-short",
    "unit-crosses", "recovery-started", "recovery-progress", "recovery-ended", "rewound", "store-damaged",
]  # fmt: skip
Hindrance = Literal[
    "offsets", "broker", "lock", "transaction", "beginning", "commits", "store", "backlog", "elsewhere", "outage",
    "uncompleted", "failed", "paused", "uncovered",
]  # fmt: skip
SharedName = Literal["claimed", "unasked", "refused", "lapsed", "foreign", "outages", "forgotten"]

AGE_BUCKETS_S: Final = (
    60.0, 300.0, 900.0, 3_600.0, 10_800.0, 21_600.0, 43_200.0, 86_400.0, 172_800.0, 259_200.0, 604_800.0, 1_209_600.0,
    2_592_000.0,
)  # fmt: skip
"""Upper bounds of the ages of duplicates, in seconds of log time: from a minute to 30 days."""
CALL_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the durations of writes and requests, in seconds."""

REASONS: Final[Mapping[VerdictKind, tuple[str, ...]]] = {
    VerdictKind.FRESH: ("off",),
    VerdictKind.DUPLICATE: ("shared", "unit"),
    VerdictKind.REDELIVERED: (),
    VerdictKind.UNVERIFIED: (
        "uncovered", "older-than-window", "out-of-order", "uncomparable", "below-floor", "malformed", "unit-unfinished",
        "unit-malformed", "unit-crosses", "shared-outage", "shared-foreign",
    ),
    VerdictKind.UNKEYED: (
        "absent", "empty", "oversized", "malformed", "not-scalar", "out-of-range", "failed",
    ),
}  # fmt: skip
"""The reasons that each final verdict may have, besides none."""
STATES: Final = ("recovering", "active", "revoking", "lost", "closed")
"""The states of a partition, as `PartitionStatus` names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One entry of the registry.

    - ``name``: without a prefix and without the unit, e.g. ``commit`` with the unit ``seconds``.
    - ``kind``: ``counter`` (only grows, until the process ends), ``gauge``, or ``histogram``.
    - ``unit``: ``seconds``, ``bytes``, or empty for a number of things.
    - ``labels``: the names of its labels, beside the group, which all metrics have.
    - ``meaning``: one sentence; ``advice``: one on when it grows, and the next step.
    - ``buckets``: the upper bounds of a histogram's buckets, ascending; the last bucket has none.
    """

    name: str
    kind: Kind
    unit: Unit = ""
    labels: tuple[Label, ...] = ()
    meaning: str
    advice: str
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """The name with the unit, e.g. ``commit_seconds``."""
        return f"{self.name}_{self.unit}" if self.unit else self.name


class Sample(NamedTuple):
    """A value of a metric at one moment.

    - ``labels``: the values of the metric's labels, in their order.
    - ``value``: of a histogram the sum of all that was observed.
    - ``buckets``: of a histogram how many values lie in each bucket alone; one more than the metric has bounds.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float
    buckets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Metrics:
    """All values of a consumer at one moment; it changes no more.

    ``group`` is the ``group.id``.
    """

    group: str
    samples: tuple[Sample, ...]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels; 0 where there is none.

        ``name`` as in `Metric.full_name`. Raises `KeyError` for a metric or a label that does not exist, and
        `ValueError` if several samples of a gauge have these labels: positions or windows of several partitions have
        no sum.
        """
        metric = BY_NAME[name]
        asked = {
            metric.labels.index(label): value for label, value in labels.items() if label in metric.labels
        }
        if len(asked) < len(labels):
            raise KeyError(f"{name} has the labels {', '.join(metric.labels) or 'none'}")
        found = [
            each
            for each in self.samples
            if each.metric.full_name == name and all(each.labels[at] == value for at, value in asked.items())
        ]
        if metric.kind == "gauge" and len(found) > 1:
            differing = zip(metric.labels, zip(*(each.labels for each in found), strict=True), strict=True)
            wanted = " and ".join(label for label, values in differing if len({*values}) > 1)
            raise ValueError(
                f"{name} is a gauge, and {len(found)} samples have these labels: give {wanted}, too, or add up the "
                "samples yourself"
            )
        return sum(each.value for each in found)


_PLACE: Final[tuple[Label, ...]] = ("topic", "partition")

# --- counters of a partition ---------------------------------------------------------------------------------------

RECORDS: Final = Metric(
    name="records",
    kind="counter",
    labels=(*_PLACE, "verdict", "reason"),
    meaning="records by their final verdict, and its reason if it has one",
    advice="a growing `unverified` or `unkeyed` means that duplicates pass: look at the reason",
)
VERDICTS: Final[Mapping[VerdictKind, tuple[str, str]]] = {
    VerdictKind.FRESH: ("to be delivered: no earlier record with the ID in the window", "normal work"),
    VerdictKind.DUPLICATE: ("hidden: same ID, another offset", "a producer or tool sends again"),
    VerdictKind.REDELIVERED: (
        "hidden: this record was completed before", "a crash, a rebalance, a failed commit",
    ),
    VerdictKind.UNVERIFIED: (
        "to be delivered: the past is not known well enough",
        (
            "`uncovered`: after a start without history; ends when the window has filled. `older-than-window`: a "
            "record comes later than the window allows"
        ),
    ),
    VerdictKind.UNKEYED: (
        "records without an ID, by reason", "a producer does not set it, or the ID spec is wrong",
    ),
}  # fmt: skip
"""The meaning and the advice of each verdict of `RECORDS`."""

OF_PARTITIONS: Final = (
    Metric(
        name="delivered", kind="counter", labels=_PLACE,
        meaning="messages that `poll`, `consume` or iteration returned, or that left `run` after a handler had them",
        advice="normal work",
    ),
    Metric(
        name="completed", kind="counter", labels=_PLACE,
        meaning="delivered records that were completed, dead letters included",
        advice="normal work; if it stands still while `lag` grows, a handler hangs",
    ),
    Metric(
        name="released", kind="counter", labels=_PLACE,
        meaning="given back, to be delivered again", advice="handlers fail",
    ),
    Metric(
        name="retried", kind="counter", labels=_PLACE,
        meaning="calls of a `run` handler after the first", advice="handlers fail, then succeed",
    ),
    Metric(
        name="dead_lettered", kind="counter", labels=_PLACE,
        meaning="completed by a confirmed dead letter", advice="handlers fail for good",
    ),
    Metric(
        name="left_out", kind="counter", labels=_PLACE,
        meaning="completed messages that did not fit into the last commit of a revoked partition; the next owner "
        "handles them again",
        advice="one message blocks thousands behind it",
    ),
    Metric(
        name="generations_shed", kind="counter", labels=_PLACE,
        meaning="times that the oldest marks were dropped, above `max_disk`",
        advice="`max_disk` is too small for the window",
    ),
    Metric(
        name="failed_commits", kind="counter", labels=_PLACE,
        meaning="commits of an offset that the group or a broker refused, or did not answer; the next commit has it",
        advice="check the coordinator, and the group's rights; after a crash, messages since the last commit are "
        "delivered again",
    ),
)  # fmt: skip
"""Counters of `PartitionCounters`, each by the attribute of its name."""

# --- counters of a consumer ----------------------------------------------------------------------------------------

OF_CONSUMER: Final = (
    Metric(
        name="stale", kind="counter",
        meaning="completions of a record that is no longer in flight; they change nothing",
        advice="handlers outlive `max.poll.interval.ms`, or complete twice",
    ),
    Metric(
        name="abandoned", kind="counter",
        meaning="`run` messages whose handler was still running when the partition was revoked or the run failed; "
        "delivered again",
        advice="handlers take longer than half of `revoke_deadline`",
    ),
    Metric(
        name="refetched", kind="counter",
        meaning="dropped: the client returned these messages a second time, without a seek or a rebalance between",
        advice="librdkafka fetches again after a change of the assignment; nothing to do",
    ),
    Metric(
        name="observer_errors", kind="counter",
        meaning="exceptions of observers, which are logged and ignored", advice="correct the observer",
    ),
    Metric(
        name="stores_set_aside", kind="counter",
        meaning="stores that were damaged, or of another rule, and are made again",
        advice="the disk changes bytes, or the ID spec changed",
    ),
)  # fmt: skip
"""Counters of `Counters`, each by the attribute of its name."""
EVENTS: Final = Metric(
    name="events", kind="counter", labels=("event",),
    meaning="partition events, by name",
    advice="`recovery-…` is normal work after a start; of each other one the table of events has the next step",
)  # fmt: skip
SHARED: Final = Metric(
    name="shared", kind="counter", labels=("name",),
    meaning="IDs and calls of a shared store, by name",
    advice="`outages`: start the store; `refused`, `lapsed`: handlers take longer than a lease",
)  # fmt: skip

# --- histograms ----------------------------------------------------------------------------------------------------

DUPLICATE_AGES: Final = Metric(
    name="duplicate_age", kind="histogram", unit="seconds", labels=("topic",), buckets=AGE_BUCKETS_S,
    meaning="how much later than the last sighting of its ID a duplicate comes, by the timestamps of the log",
    advice="if many lie in the last buckets below the window, later ones may be missed: set a longer window",
)  # fmt: skip
TIMES: Final = (
    Metric(
        name="journal", kind="histogram", unit="seconds", buckets=CALL_BUCKETS_S,
        meaning="the time of a write of completed records to the journal of a store",
        advice="the disk is slow, or nearly full",
    ),
    Metric(
        name="flush", kind="histogram", unit="seconds", buckets=CALL_BUCKETS_S,
        meaning="the time of a flush of recent marks to a sorted file, all of its steps together",
        advice="the disk is slow, or the machine is busy",
    ),
    Metric(
        name="commit", kind="histogram", unit="seconds", buckets=CALL_BUCKETS_S,
        meaning="the time from a commit to the answer of the group's coordinator",
        advice="check the coordinator and the network",
    ),
    Metric(
        name="shared_call", kind="histogram", unit="seconds", buckets=CALL_BUCKETS_S,
        meaning="the time of a call of a shared store that was answered",
        advice="each batch waits for it: check the store and the network",
    ),
)  # fmt: skip
"""Histograms of `Counters`, each by the attribute of its name."""

# --- gauges of a partition -----------------------------------------------------------------------------------------

STATE: Final = Metric(
    name="state", kind="gauge", labels=(*_PLACE, "state"),
    meaning="1 for the state that an assigned partition has, 0 for the others",
    advice="`recovering` for long: look at `recovery_left` and the hindrances",
)  # fmt: skip
HINDRANCES: Final = Metric(
    name="hindered", kind="gauge", labels=(*_PLACE, "hindrance"),
    meaning="1 for each reason why a partition does not progress, 0 for the others",
    advice="alarm when one other than `uncovered` or `elsewhere` stays for minutes; the reference has each",
)  # fmt: skip


def _gauge(name: str, meaning: str, advice: str, unit: Unit = "") -> Metric:
    return Metric(name=name, kind="gauge", unit=unit, labels=_PLACE, meaning=meaning, advice=advice)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1_000


GAUGES: Final[Mapping[Metric, Callable[[PartitionStatus], float | None]]] = {
    _gauge(
        "committed_offset", "the group's offset that the broker confirmed last",
        "normal work; if it stands still while `position` grows, a message is not completed, or commits fail",
    ): lambda status: status.committed,
    _gauge("position", "the offset after the last judged record", "normal work"): lambda status: status.position,
    _gauge(
        "lag", "offsets from the committed one to the end of the log as the client knows it",
        "handlers are slower than producers: add workers, or consumers",
    ): lambda status: status.lag,
    _gauge(
        "in_flight", "judged records that are not completed, waiting ones included",
        "handlers are slow, or one hangs",
    ): lambda status: status.in_flight,
    _gauge(
        "waiting", "records that wait for another one, e.g. with the same ID",
        "a handler hangs, or a unit is not whole",
    ): lambda status: status.waiting,
    _gauge(
        "recovery", "how long the recovery of an assigned partition lasts, or has lasted",
        "a store was missing or behind: keep it on a disk that stays, or give a snapshot", "seconds",
    ): lambda status: status.recovery_seconds,
    _gauge(
        "recovery_left", "offsets that a recovery has still to replay",
        "if it falls too slowly, give a snapshot",
    ): lambda status: status.recovery_left,
    _gauge(
        "effective_window", "how far back the IDs of a partition are known",
        "it should grow to the window, and stay there; below it, older duplicates are delivered", "seconds",
    ): lambda status: _seconds(status.effective_window_ms),
    _gauge(
        "store", "the size of the key store on disk", "more IDs in the window: set `max_disk`, or give room", "bytes",
    ): lambda status: status.store_bytes,
    _gauge(
        "store_marks", "IDs in the sorted files of the key store, an estimate", "more IDs in the window",
    ): lambda status: status.store_marks,
    _gauge(
        "store_files", "sorted files of the key store", "normal work: files leave with their marks",
    ): lambda status: status.store_files,
}  # fmt: skip
"""Gauges with the value that a status has for each; None: not known now, so that there is no sample."""

METRICS: Final[tuple[Metric, ...]] = (
    RECORDS, *OF_PARTITIONS, *OF_CONSUMER, EVENTS, SHARED, STATE, HINDRANCES, *GAUGES, DUPLICATE_AGES, *TIMES,
)  # fmt: skip
"""The registry: all metrics that a consumer has."""
BY_NAME: Final[Mapping[str, Metric]] = {metric.full_name: metric for metric in METRICS}


def flat_names() -> dict[str, int]:
    """Return 0 for each name of `Counters.as_dict`, in the order of the registry."""
    names = [kind.value for kind in REASONS]
    names += [f"{kind.value}.{reason}" for kind, reasons in REASONS.items() for reason in reasons]
    names += [metric.name for metric in (*OF_PARTITIONS, *OF_CONSUMER)]
    names += [f"event.{name}" for name in get_args(EventName)]
    names += [f"shared.{name}" for name in get_args(SharedName)]
    return dict.fromkeys(names, 0)


def samples_of(
    counters: Counters,
    partitions: Mapping[tuple[str, int], PartitionCounters],
    statuses: Sequence[PartitionStatus],
) -> Iterator[Sample]:
    """Yield all samples of a consumer; without a lock, from any thread."""
    yield from _of_partitions(partitions)
    for metric in OF_CONSUMER:
        yield Sample(metric, (), getattr(counters, metric.name))
    yield from _named_counts(EVENTS, get_args(EventName), counters.events)
    yield from _named_counts(SHARED, get_args(SharedName), counters.shared)
    yield from _of_statuses(statuses)
    for metric in TIMES:
        yield _histogram(metric, (), [getattr(counters, metric.name)])


def _of_partitions(partitions: Mapping[tuple[str, int], PartitionCounters]) -> Iterator[Sample]:
    for place, counted in partitions.items():
        for (verdict, reason), count in _by_reason(counted).items():
            yield Sample(RECORDS, (*_named(place), verdict, reason), count)
        for metric in OF_PARTITIONS:
            yield Sample(metric, _named(place), getattr(counted, metric.name))
    for topic in dict.fromkeys(topic for topic, _ in partitions):
        ages = [counted.ages for (name, _), counted in partitions.items() if name == topic]
        yield _histogram(DUPLICATE_AGES, (topic,), ages)


def _named_counts(metric: Metric, known: Iterable[str], counted: Mapping[str, int]) -> Iterator[Sample]:
    for name, count in (dict.fromkeys(known, 0) | dict(counted)).items():
        yield Sample(metric, (name,), count)


def _of_statuses(statuses: Sequence[PartitionStatus]) -> Iterator[Sample]:
    for status in statuses:
        place = _named((status.topic, status.partition))
        for state in STATES:
            yield Sample(STATE, (*place, state), float(state == status.state))
        for hindrance in get_args(Hindrance):
            yield Sample(HINDRANCES, (*place, hindrance), float(hindrance in status.hindrances))
        for metric, value_of in GAUGES.items():
            if (value := value_of(status)) is not None:
                yield Sample(metric, place, value)


def _named(place: tuple[str, int]) -> tuple[str, str]:
    return place[0], str(place[1])


def _by_reason(counted: PartitionCounters) -> dict[tuple[str, str], int]:
    """Return the records of a partition by verdict and reason; each pair that there is, from the start."""
    reasons, verdicts = dict(counted.reasons), dict(counted.verdicts)
    known = {
        (kind.value, reason): reasons.pop(f"{kind.value}.{reason}", 0)
        for kind, possible in REASONS.items()
        for reason in possible
    }
    known |= {(name.partition(".")[0], name.partition(".")[2]): count for name, count in reasons.items()}
    explained = dict.fromkeys(verdicts, 0)
    for (verdict, _), count in known.items():
        explained[verdict] += count
    return {(verdict, ""): count - explained[verdict] for verdict, count in verdicts.items()} | known


def _histogram(metric: Metric, labels: tuple[str, ...], observed: Iterable[Histogram]) -> Sample:
    taken = [each.taken() for each in observed]
    buckets = [sum(counts) for counts in zip(*(counts for counts, _ in taken), strict=True)]
    return Sample(metric, labels, sum(total for _, total in taken), tuple(buckets))
