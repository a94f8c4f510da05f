"""Random logs of several sources: IDs in some disorder, sent again, of changing origin, some malformed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.model.last_id.rule import Ident, Sent


@dataclass
class _Numbers:
    """The numbers of one origin of one source, each overtaking at most ``depth`` others, and overtaken by no more."""

    random: random.Random
    depth: int
    next: int = 0
    overtaken: dict[int, int] = field(default_factory=dict)
    seen: list[int] = field(default_factory=list)

    def draw(self) -> int:
        while len(self.overtaken) <= self.depth:
            self.next += self.random.choice([1, 1, 1, 2, 7])
            self.overtaken[self.next] = 0
        waiting = list(self.overtaken)
        # One that is due goes before anything newer does.
        due = [index for index, number in enumerate(waiting) if self.overtaken[number] >= self.depth]
        index = self.random.randrange((due[0] if due else len(waiting) - 1) + 1)
        if self.random.random() < 0.5:
            index = 0
        for number in waiting[:index]:
            self.overtaken[number] += 1
        del self.overtaken[waiting[index]]
        self.seen.append(waiting[index])
        return waiting[index]

    def again(self, *, wild: bool) -> int:
        near = sorted(self.seen)[-self.depth - 1 :]
        return self.random.choice(self.seen if wild else near)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """The contents of a log; ``wild``: resends may lie anywhere, not only inside the depth."""

    depth: int
    sources: int = 2
    origins: int = 1
    malformed: float = 0.0
    wild: bool = False


def draw_log(chooser: random.Random, length: int, manners: Manners) -> list[Sent]:
    """Draw a log."""
    numbers: dict[tuple[int, int], _Numbers] = {}
    origins = [0] * manners.sources
    log: list[Sent] = []
    for offset in range(length):
        source = chooser.randrange(manners.sources)
        if chooser.random() < 0.1:
            origins[source] = chooser.randrange(manners.origins)
        held = numbers.setdefault((source, origins[source]), _Numbers(chooser, manners.depth))
        if chooser.random() < manners.malformed:
            ident = Ident(f"?{chooser.randrange(3)}", None)
        elif held.seen and chooser.random() < 0.4:
            ident = Ident(str(origins[source]), held.again(wild=manners.wild))
        else:
            ident = Ident(str(origins[source]), held.draw())
        log.append(Sent(offset, str(source), ident))
    return log
