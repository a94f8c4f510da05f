from __future__ import annotations

import re

from tests.support.pages import ROOT, site_module

LOG_LINES = site_module("log_lines")
CALLS = list(LOG_LINES.calls())


def test_every_log_call_has_a_line_on_the_page() -> None:
    """Each call of a logger at INFO or above is explained in `docs/site/log_lines.py`."""
    assert [call for call in CALLS if LOG_LINES.line_of(call) is None] == []
    assert len(CALLS) > 80


def test_every_line_of_the_page_is_logged() -> None:
    """The table has no line that no call writes, and none twice."""
    lines = [line for lines in LOG_LINES.LINES.values() for line in lines]
    assert len(set(lines)) == len(lines)
    assert set(lines) == {LOG_LINES.line_of(call) for call in CALLS}


def test_no_call_of_a_logger_is_overlooked() -> None:
    """As many calls are found as the text of the package has, under whatever name a module keeps its logger."""
    found = {call.file for call in CALLS}
    for path in sorted((ROOT / "dedup_sdk").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"^(\w+)(?:: \w+)? = logging\.getLogger", text, re.MULTILINE)
        assert set(names) <= {"log", "logger"}, path
        if re.search(
            r"\.(warning|error|exception|critical)\($|\.(warning|exception)\(\"", text, re.MULTILINE
        ):
            assert path.relative_to(ROOT / "dedup_sdk").as_posix() in found, path


def test_the_page_is_what_the_code_logs() -> None:
    """docs/log-lines.md is generated; after a change: python docs/site/log_lines.py > docs/log-lines.md."""
    assert (ROOT / "docs" / "log-lines.md").read_text(encoding="utf-8") == LOG_LINES.page()
