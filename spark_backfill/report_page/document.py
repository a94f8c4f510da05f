"""The JSON that a report is made from: the facts of a run, and its findings about duplicates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dedup_sdk._masking import error_shown, shown
from dedup_sdk._store.manifest import MANIFEST_NAME, Manifest, as_written, read_manifest
from spark_backfill.errors import BackfillError
from spark_backfill.findings.findings import Findings
from spark_backfill.report import Report

FINDINGS_NAME: Final = "findings.json"
"""Its name in the folder of a report, and in that of a snapshot that was made with one."""

FORMAT: Final = 2
_PLACES: Final = frozenset({"output", "sources", "versions", "base"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """All that a report shows.

    ``facts`` are the fields of a `Manifest` without its files, and the figures of a `Report` without the places
    that it read from and wrote to; no setting of a client is among them. ``producer_header`` is the header that
    names producers, None where none was given.
    """

    facts: Mapping[str, Any]
    findings: Findings
    producer_header: str | None = None

    def __str__(self) -> str:
        """The JSON, in one line."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, separators=(",", ":"))


def make_document(
    manifest: Manifest, report: Report, findings: Findings, *, producer_header: str | None = None
) -> Document:
    """Return the document of a run that made a snapshot."""
    facts = {name: value for name, value in asdict(report).items() if name not in _PLACES}
    facts |= as_written(manifest)
    for entry in facts["partitions"]:
        entry["bytes"] = sum(file["bytes"] for file in entry.pop("files"))
    return Document(facts=facts, findings=findings, producer_header=producer_header)


def read_document(place: Path) -> Document:
    """Read the document of a report: its JSON file, or a folder (of a report or of a snapshot) that has one.

    Raises:
        BackfillError: there is none, or something else, or it is of another snapshot than that of the folder.
        SnapshotError: the folder's manifest cannot be read.
    """
    path = place / FINDINGS_NAME if place.is_dir() else place
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise BackfillError(
                f"{path} has format {shown(content['format'])}, and this version draws format {FORMAT}; run the "
                "backfill again"
            )
        document = Document(
            facts=content["facts"],
            findings=Findings.from_json(content["findings"]),
            producer_header=content["producer_header"],
        )
        fingerprint = document.facts["fingerprint"]
    except OSError as error:
        raise BackfillError(
            f"{path} cannot be read ({error.strerror}): run the backfill with --report, or give the {FINDINGS_NAME} "
            "of a report"
        ) from None
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise BackfillError(
            f"{path} is no whole report ({error_shown(error)}); give the {FINDINGS_NAME} of one, or run the backfill "
            f"again"
        ) from None
    if (place / MANIFEST_NAME).exists() and read_manifest(place).fingerprint != fingerprint:
        raise BackfillError(
            f"{path} is of another snapshot than {MANIFEST_NAME} beside it: the run that made this one had no "
            "--report; run the backfill again with it"
        )
    return document
