"""The way of a record stays short enough to be read; see `benchmarks.path`."""

from __future__ import annotations

from benchmarks.path import alone_path, assignment_path, housekeeping_path, record_path


def test_one_record_is_a_short_way() -> None:
    """From the fetch to the hand-out, and to its completion by the next call.

    Five of these calls are the doors between the parts of the way, paid once a batch.
    """
    trail = record_path()

    assert trail.count() <= 67, "\n".join(trail.trace)
    assert trail.modules <= 19, sorted(trail.calls)
    assert trail.count("_kafka/") <= 35, "\n".join(trail.trace)
    assert trail.count("ids/") <= 8, "\n".join(trail.trace)


def test_a_record_that_comes_alone_is_a_shorter_way() -> None:
    """From the fetch to the hand-out, with the completion of the one before."""
    trail = alone_path()

    assert trail.count() <= 38, "\n".join(trail.trace)


def test_what_is_on_a_timer_is_a_short_way() -> None:
    """A call for which nothing has come."""
    trail = housekeeping_path()

    assert trail.count() <= 34, "\n".join(trail.trace)


def test_an_assignment_is_a_way_of_limited_length() -> None:
    """From the client's callback to the first message, with the store that an orderly end left.

    Each step of a recovery is a file of its own, which is read alone: that costs modules, and no calls.
    """
    trail = assignment_path()
    for _ in range(3):
        if trail.count() > 280 or trail.modules > 41 or trail.count("_kafka/") > 128:
            # On a busy machine the first message comes a round later, or a request is answered late.
            trail = assignment_path()

    assert trail.count() <= 280, "\n".join(trail.trace)
    assert trail.modules <= 41, sorted(trail.calls)
    assert trail.count("_kafka/") <= 128, "\n".join(trail.trace)
