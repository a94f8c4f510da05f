"""Logs and the acts of a hostile application, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

Row = tuple[int, str | None, int]
"""Offset, ID and timestamp (ms) of a record."""

Act = tuple[str, int]
"""``admit`` so many records, or ``complete``, ``release`` or ``dead``-letter one of those in flight."""

FAR_FUTURE_MS = 10**15

acts: st.SearchStrategy[list[Act]] = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(1, 8)),
        st.tuples(
            st.sampled_from(["complete", "complete", "complete", "release", "dead"]), st.integers(0, 9)
        ),
    ),
    max_size=60,
)


@st.composite
def logs(draw: st.DrawFn, max_size: int = 40, *, orderly: bool = False) -> list[Row]:
    """A log with gaps and few IDs; unless ``orderly``, timestamps go back, are missing (-1), or lie in the future."""
    ticks = [0, 0, 1, 1, 5, 20, 21, 100]
    disorder = [-3, -50, None, FAR_FUTURE_MS]
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from([1, 1, 1, 1, 2, 5]),
                st.sampled_from(["a", "b", "c", "d", "e", "f", None]),
                st.sampled_from(ticks if orderly else [*ticks, *disorder]),
            ),
            min_size=1,
            max_size=max_size,
        )
    )
    offset, now_ms = draw(st.sampled_from([0, 7])), 1000
    log: list[Row] = []
    for step, ident, tick in steps:
        timestamp_ms = -1 if tick is None else tick
        if tick is not None and tick < FAR_FUTURE_MS:
            now_ms = timestamp_ms = max(0, now_ms + tick)
        log.append((offset, ident, timestamp_ms))
        offset += step
    return log
