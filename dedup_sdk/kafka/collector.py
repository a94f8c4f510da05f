"""The cyclic garbage collector, kept out of a batch.

It would walk a thousand live messages (and the headers that each has by then) twice a batch: a tenth of the whole cost. So it is
paused while a batch is fetched and judged, never while waiting. It comes back as the very last thing before the application
has its messages: those of the batch before are then freed before the next allocation asks whether there is anything to collect.
"""

from __future__ import annotations

import gc


class Collector:
    """Pauses the collector if it runs, and brings it back if it was paused here (``paused``).

    A ``gc.disable()`` by another thread during the few milliseconds between is undone.
    """

    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        """Keep the collector out until `resume`."""
        if gc.isenabled():
            gc.disable()
            self.paused = True

    def resume(self) -> None:
        """Leave the collector as the user has it."""
        if self.paused:
            self.paused = False
            gc.enable()
