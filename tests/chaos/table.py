"""All scenarios, by name."""

from __future__ import annotations

from typing import Final

from tests.chaos.process_faults import KILL, SLOW_HANDLER, STORM, ZOMBIE
from tests.chaos.scenario import Scenario

SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario for scenario in (KILL, ZOMBIE, STORM, SLOW_HANDLER)
}
