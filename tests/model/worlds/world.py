"""What may happen in a world; everything that is not switched on does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dedup_sdk.kafka.intake import Durability
from dedup_sdk.kafka.recovery import OnFullDisk
from dedup_sdk.window import Window

WALL_CLOCK_MS = 10_000_000
"""What every clock says; timestamps beyond it lie in the future."""
FAR_FUTURE_MS = 10**15
BRIEFLY = Window(milliseconds=40)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One world. Numbers between 0 and 1 are chances, of each step or each record.

    ``hosts``: machines with a disk of their own, on each of which every group has a consumer; with ``one_disk`` there is one
    disk for all of them. ``parking`` is how many records of a partition may wait in memory (None: as in production).
    """

    window: Window = BRIEFLY
    partitions: int = 1
    groups: tuple[str, ...] = ("g",)
    hosts: int = 2
    one_disk: bool = False
    steps: int = 300
    recent_marks: tuple[int, ...] = (1, 3, 1000)
    durability: tuple[Durability, ...] = ("record", "batch", "commit")
    times: Literal["orderly", "wild"] = "orderly"
    repeats: float = 0.5
    crashes: float = 0.02
    fuses: float = 0.0
    lost_disks: float = 0.1
    zombies: float = 0.0
    holes: float = 0.0
    truncations: float = 0.0
    retention: float = 0.0
    poison: float = 0.03
    redrives: float = 0.0
    full_disks: float = 0.0
    on_full_disk: OnFullDisk = "pause"
    impatience: float = 0.0
    operators: float = 0.0
    parking: int | None = None

    @property
    def exact(self) -> bool:
        """Whether every verdict follows from the log alone, so that the oracle can say what it has to be."""
        return not (self.truncations or self.operators)


WORLDS = {
    "crashes": World(fuses=0.05),
    "zombies": World(zombies=0.6, crashes=0.03, hosts=3),
    "transactions": World(holes=0.3, fuses=0.02),
    "two-groups": World(groups=("g", "h"), one_disk=True, lost_disks=0.0, steps=400),
    "rings": World(window=Window(count=3), repeats=0.8, fuses=0.03, zombies=0.2),
    "ring-of-one": World(window=Window(count=1), repeats=0.9, fuses=0.03),
    "both-windows": World(window=Window(milliseconds=60, count=4), repeats=0.8, fuses=0.03),
    "parking": World(partitions=3, parking=6, repeats=0.8, crashes=0.005, steps=500),
    "dead-letters": World(poison=0.2, redrives=0.7, fuses=0.03, repeats=0.6),
    "full-disk": World(full_disks=0.04, fuses=0.01),
    "full-disk-unverified": World(full_disks=0.04, on_full_disk="unverified", recent_marks=(1, 3)),
    "impatience": World(impatience=0.5, hosts=3, retention=0.01),
    "wild-times": World(times="wild", fuses=0.03, repeats=0.7),
    "wild-rings": World(times="wild", window=Window(milliseconds=60, count=3), fuses=0.03, repeats=0.7),
    "operators": World(operators=0.03, fuses=0.02),
    "truncation": World(truncations=0.015, poison=0.0),
}
