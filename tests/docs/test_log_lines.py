from __future__ import annotations

import logging
import re

import pytest

from dedup_sdk import Deduplicator, Lookup, PartitionEvent, Window, header
from dedup_sdk._log_fields import FIELDS, LOGGERS, fields_of
from tests.support.pages import ROOT, site_module

LOG_LINES = site_module("log_lines")
CALLS = list(LOG_LINES.calls())


def test_every_log_call_names_its_event() -> None:
    """A program finds a line by it, also if the text changes; lines at DEBUG, too."""
    without = [call for call in CALLS if not re.fullmatch(r"[a-z]+(-[a-z]+)*|event\.name", call.event)]
    assert without == []
    assert len(CALLS) > 120


def test_every_log_call_has_a_line_on_the_page() -> None:
    """Each call of a logger at INFO or above is explained in `docs/site/log_lines.py`."""
    explained = [call for call in CALLS if call.level != "DEBUG"]
    assert [call for call in explained if LOG_LINES.line_of(call) is None] == []


def test_every_line_of_the_page_is_logged() -> None:
    """The table has no line that no call writes, and none twice."""
    lines = [line for lines in LOG_LINES.LINES.values() for line in lines]
    assert len(set(lines)) == len(lines)
    assert set(lines) == {LOG_LINES.line_of(call) for call in CALLS} - {None}


def test_no_call_of_a_logger_is_overlooked() -> None:
    """As many calls are found as the text of the package has, under whatever name a module keeps its logger."""
    found = {call.file for call in CALLS}
    for folder in LOG_LINES.FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            names = re.findall(r"^(\w+)(?:: \w+)? = logging\.getLogger", text, re.MULTILINE)
            assert set(names) <= {"log", "logger"}, path
            if re.search(
                r"\.(warning|error|exception|critical)\($|\.(warning|exception)\(\"", text, re.MULTILINE
            ):
                assert path.relative_to(folder).as_posix() in found, path


def test_the_page_is_what_the_code_logs() -> None:
    """docs/log-lines.md is generated; after a change: python docs/site/log_lines.py > docs/log-lines.md."""
    assert (ROOT / "docs" / "log-lines.md").read_text(encoding="utf-8") == LOG_LINES.page()


def test_every_logger_of_the_package_sets_the_fields() -> None:
    """A new one has to be in the list."""
    found = set[str]()
    for path in [path for folder in LOG_LINES.FOLDERS for path in folder.rglob("*.py")]:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in re.findall(
            r"^log\w* = logging\.getLogger\((.+)\)", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            found.add(module if name == "__name__" else name.strip('"'))
    assert found == set(LOGGERS)


@pytest.mark.parametrize(
    ("text", "arguments", "fields"),
    [
        ("%s[%d]: closing failed", ("orders", 3), {"topic": "orders", "partition": 3}),
        ("failed at %s[%d]@%d; on", ("o", 0, 7), {"topic": "o", "partition": 0, "offset": 7}),
        (
            "%s[%d]: commit of offset %d failed (%s)",
            ("o", 1, 9, "why"),
            {"topic": "o", "partition": 1, "offset": 9},
        ),
        ("%s: disk full: dropped %d", ("orders[12]", 5), {"topic": "orders", "partition": 12}),
        ("%s %d partitions: %s", ("assigned", 2, "orders[0-1]"), {}),
        ("commit failed (%s)", ("orders[1]",), {"topic": "orders", "partition": 1}),
        ("%.1f s of %s", (1.5, "a"), {}),
        ("nothing", (), {}),
    ],
)
def test_fields_come_from_the_text(
    text: str, arguments: tuple[object, ...], fields: dict[str, object]
) -> None:
    """Whatever a line names first; nothing else."""
    assert fields_of(text, arguments) == fields


def test_a_record_has_all_fields(caplog: pytest.LogCaptureFixture) -> None:
    """Also one that names nothing, so that a format may use them."""
    logger = logging.getLogger("dedup_sdk")
    logger.warning("%s[%d]: anything", "orders", 1)
    logger.warning("100% of {it}")
    logging.getLogger("dedup_adapters").warning("%s: anything", "orders[2]", extra={"event": "anything"})
    shown = [tuple(getattr(record, name) for name in FIELDS) for record in caplog.records]
    assert shown == [("orders", 1, None, None), (None, None, None, None), ("orders", 2, None, "anything")]


def test_the_event_of_a_partition_is_that_of_its_line(caplog: pytest.LogCaptureFixture) -> None:
    """A line of the engine, as it is logged."""
    with Deduplicator(Lookup(id=header("dedup-id"), window=Window(days=7))) as engine:
        engine.tell(PartitionEvent("log-truncated", "orders", 2, 788, "the log ends before"))
    [record] = caplog.records
    shown = tuple(getattr(record, name) for name in FIELDS)
    assert shown == ("orders", 2, 788, "log-truncated")
