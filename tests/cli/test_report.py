from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from spark_backfill.report_page.page import write_page
from tests.support.sample_report import sample_document, sample_findings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Dedup


@pytest.mark.slow
def test_a_report_is_drawn_again(dedup: Dedup, tmp_path: Path) -> None:
    """From the folder or the JSON of a report the command makes the same page, and says where it is."""
    page = write_page(sample_document(sample_findings()), tmp_path / "report")
    for source in (page.parent, page.parent / "findings.json"):
        done = dedup("report", str(source), "--output", str(tmp_path / "again"))
        assert (done.status, done.stdout) == (0, "")
        assert "report.html" in done.stderr
        assert (tmp_path / "again" / "report.html").read_bytes() == page.read_bytes()
    done = dedup("report", str(page.parent), "--output", str(tmp_path / "again"), "--json", "--quiet")
    assert (json.loads(done.stdout), done.stderr) == ({"page": str(tmp_path / "again" / "report.html")}, "")


def test_a_snapshot_without_findings_is_one_line(dedup: Dedup, tmp_path: Path) -> None:
    """A folder that no report was asked for says how to get one, and nothing is made."""
    done = dedup("report", str(tmp_path), "--output", str(tmp_path / "page"))
    assert done.status == 1
    assert "run the backfill with --report" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
