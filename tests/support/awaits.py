"""A coroutine that is cancelled at chosen awaits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Generator


class _Counted:
    """Awaits a coroutine; its task is cancelled while it waits for the so manyeth time, at each of the places."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], places: Collection[int]) -> None:
        self._coroutine, self._places = coroutine, places
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        task = asyncio.current_task()
        assert task is not None
        give: Any = steps.send
        value: Any = None
        while True:
            try:
                waits_for = give(value)
            except StopIteration as end:
                return end.value
            finally:
                # An exception that its own traceback holds would keep what the frames hold, e.g. a cursor.
                value = None
            if self.waits in self._places:
                asyncio.get_running_loop().call_soon(task.cancel)
            self.waits += 1
            try:
                value, give = (yield waits_for), steps.send
            except BaseException as error:  # noqa: BLE001 (it goes into the coroutine)
                value, give = error, steps.throw


async def cancelled_at(coroutine: Coroutine[Any, Any, Any], *places: int) -> bool:
    """Run a coroutine in a task that is cancelled at these awaits (0: the first); whether it came to the first."""
    counted = _Counted(coroutine, places)

    async def main() -> None:
        await counted

    task = asyncio.create_task(main())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return counted.waits > places[0]
