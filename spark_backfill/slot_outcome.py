"""A task's result for the driver, of a slot it wrote."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from dedup_sdk._store.manifest import SortedFile
from spark_backfill.findings.findings import Findings
from spark_backfill.runs import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOutcome:
    """One slot, written by the attempt whose result Spark kept.

    - ``slot``: its number in the plan.
    - ``tally``: the counts of the rows that were read, in a partition's first slot; ``malformed``: records whose ID the
      order of `LastId` cannot read.
    - ``accepted``: the rank of the last accepted record (0 without a count window); ``forgotten_ms`` and
      ``forgotten_number``: the newest timestamp and the highest acceptance number left out (None: nothing, or no
      numbers).
    - ``file``: the sorted file, whose name no other attempt has; None when nothing is remembered.
    - ``failed_unit``: the offset of the last record of a unit that failed, so that older IDs are not known; None where
      none did.
    - ``cut``: where the offset range ends instead, because a unit is open there; None: where it was to end.
    - ``findings``: those about duplicates, None where no report was asked for.
    """

    slot: int
    tally: Tally
    accepted: int
    forgotten_ms: int | None
    forgotten_number: int | None
    file: SortedFile | None
    malformed: int = 0
    failed_unit: int | None = None
    cut: int | None = None
    findings: Findings | None = None

    def to_json(self) -> str:
        """Return the text that `from_json` reads."""
        content = {each.name: getattr(self, each.name) for each in fields(self)}
        file = None if self.file is None else asdict(self.file)
        findings = None if self.findings is None else self.findings.to_json()
        return json.dumps({**content, "tally": asdict(self.tally), "file": file, "findings": findings})

    @classmethod
    def from_json(cls, text: str) -> SlotOutcome:
        """Read the output of `to_json`."""
        content = json.loads(text)
        tally, file, findings = content.pop("tally"), content.pop("file"), content.pop("findings")
        return cls(
            **content,
            tally=Tally(**tally),
            file=None if file is None else SortedFile(**file),
            findings=None if findings is None else Findings.from_json(findings),
        )
