"""From readings to figures: medians over the rounds, ratios to the bare loops, a table."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.measure import Reading

Figures = dict[str, float]

_MICROSECONDS = 1e6
_TITLES = ("contender", "msgs/s", "x bare default", "x bare tuned", "CPU us/msg", "peak MiB")


def figures(readings: Sequence[Reading], records: int) -> Figures:
    """The figures of one contender: medians of its rounds, but for memory, where the highest counts.

    ``msgs_per_second`` and ``cpu_us_per_msg`` are per record *read*, duplicates included.
    """
    return {
        "msgs_per_second": round(records / median(each.seconds for each in readings)),
        "cpu_us_per_msg": round(median(each.cpu_seconds for each in readings) / records * _MICROSECONDS, 3),
        "peak_rss_mib": round(max(each.peak_rss_mib for each in readings), 1),
    }


def ratio(contenders: Mapping[str, Figures], name: str, base: str) -> float | None:
    """How many times the throughput of `base` the contender `name` has; None where one of them did not run."""
    if name not in contenders or base not in contenders:
        return None
    return round(contenders[name]["msgs_per_second"] / contenders[base]["msgs_per_second"], 3)


def summary(
    contenders: Mapping[str, Figures], *, exact: bool | None, bytes_per_id: float | None
) -> dict[str, Any]:
    """The object that ``--json`` prints: a key a contender, and the figures of ``dedup_consume``."""
    return {
        **contenders,
        "ratio_to_bare_default": ratio(contenders, "dedup_consume", "bare_default"),
        "ratio_to_bare_tuned": ratio(contenders, "dedup_consume", "bare_tuned"),
        "poll_ratio_to_bare_tuned_poll": ratio(contenders, "dedup_poll", "bare_tuned_poll"),
        "ratio_to_memory_set": ratio(contenders, "dedup_consume", "memory_set"),
        "poll_ratio_to_memory_set_poll": ratio(contenders, "dedup_poll", "memory_set_poll"),
        "bytes_per_id": bytes_per_id,
        "exact": exact,
    }


def text(result: Mapping[str, Any]) -> str:
    """The output without ``--json``: the table, then the other figures, a line each."""
    contenders = {name: value for name, value in result.items() if isinstance(value, dict)}
    others = [(name, value) for name, value in result.items() if name not in contenders and value is not None]
    width = max(len(name) for name, _ in others)
    return "\n".join([table(contenders), "", *(f"{name.ljust(width)}  {value}" for name, value in others)])


def table(contenders: Mapping[str, Figures]) -> str:
    """The contenders, fastest first, one line each."""
    fastest_first = sorted(contenders, key=lambda name: -contenders[name]["msgs_per_second"])
    rows = [_TITLES, *(_row(contenders, name) for name in fastest_first)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )


def _row(contenders: Mapping[str, Figures], name: str) -> tuple[str, ...]:
    own = contenders[name]
    ratios = (ratio(contenders, name, base) for base in ("bare_default", "bare_tuned"))
    return (
        name,
        f"{own['msgs_per_second']:,.0f}",
        *("-" if each is None else f"{each:.2f}" for each in ratios),
        f"{own['cpu_us_per_msg']:.2f}",
        f"{own['peak_rss_mib']:.0f}",
    )
