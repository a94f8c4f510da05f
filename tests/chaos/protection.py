"""Takes a protection away where a process is told to.

Apart from `sabotage`, which imports all that it can break: databases and Redis take longer to import than the rest of a
worker, and a scenario starts ten to twenty processes.
"""

from __future__ import annotations


def take_away(protection: str) -> None:
    """Take one protection away; an empty name takes none."""
    if protection:
        from tests.chaos.sabotage import sabotage

        sabotage(protection)
