"""A few things at once, for what waits for a network: the files of a snapshot behind a URL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from threading import Event
from typing import Final

AT_ONCE: Final = 4
_STEP_S: Final = 0.02

Task = Callable[[Event], None]
"""Does one thing; ends soon once the event is set."""


def in_parallel(tasks: Iterable[Task]) -> Iterator[None]:
    """Run tasks in `AT_ONCE` threads of their own; each step waits 20 ms at most, so that who asks can do other things meanwhile.

    The first error of a task is raised, and ends the others. Whoever stops asking ends them too, and waits for that.
    """
    stop = Event()
    left = iter(tasks)
    running: set[Future[None]] = set()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="dedup-snapshot") as pool:
        try:
            while True:
                running |= {pool.submit(task, stop) for task in islice(left, AT_ONCE - len(running))}
                if not running:
                    return
                done, running = wait(running, timeout=_STEP_S, return_when=FIRST_COMPLETED)
                for each in done:
                    each.result()
                yield
        finally:
            stop.set()
