from __future__ import annotations

import inspect
import io
import logging
import pkgutil
import re
from typing import TYPE_CHECKING, get_args

import pytest
from rich.console import Console

import dedup_sdk
from dedup_sdk import (
    ConfigurationError,
    Counters,
    DedupConsumer,
    DedupError,
    Deduplicator,
    Recovery,
    Unit,
    VerdictKind,
)
from dedup_sdk._core.reach import GRACE, Beginning
from dedup_sdk._demo.narrator import STEPS, DemoResult, last_line, result_table
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._kafka.consumer import BATCH
from dedup_sdk._kafka.deliver.maintenance import MAINTENANCE_S
from dedup_sdk._kafka.deliver.write_policy import MOST_UNWRITTEN
from dedup_sdk._kafka.recover.scheduler import SLICE_S
from dedup_sdk._kafka.recover.session import WAITING_SHARE
from dedup_sdk._kafka.recover.upkeep import MOST_WAITING
from dedup_sdk._masking import MAX_ERROR_CHARS
from dedup_sdk._metrics import EventName
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._units.memory import MOST_OPEN
from dedup_sdk.bridge import Bridge, BridgeCounters
from dedup_sdk.ids import MAX_ID_BYTES, Ids
from dedup_sdk.producer import DedupProducer
from dedup_sdk.producer._outbox import OutboxCounters
from dedup_sdk.testing import MockKafka
from tests.support.pages import PAGES, ROOT, Stage, page_id, site_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def text_of(name: str) -> str:
    """A page of docs/."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def codes(text: str) -> set[str]:
    """The code words in a page's text."""
    return set(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text))


METRIC_TABLES = site_module("metric_tables")
EVERYTHING = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_every_counter_is_explained() -> None:
    """docs/reference.md says of each counter which events it counts; those with a name have a table of their own."""
    explained = codes(text_of("reference.md")) | codes(text_of("shared-store.md"))
    assert {name.removeprefix("event.").removeprefix("shared.") for name in Counters().as_dict()} <= explained


@pytest.mark.parametrize("page", METRIC_TABLES.TABLES)
def test_the_tables_of_metrics_are_the_registry(page: str) -> None:
    """They are generated; after a change: python docs/site/metric_tables.py."""
    assert text_of(page) == METRIC_TABLES.page_with_table(page)


def test_every_verdict_is_named() -> None:
    """docs/reference.md names every verdict."""
    assert {kind.value for kind in VerdictKind} <= codes(text_of("reference.md"))


def test_every_beginning_is_explained() -> None:
    """docs/recovery.md explains each way in which a partition starts."""
    assert set(get_args(Beginning)) <= codes(text_of("recovery.md"))


def test_every_event_has_its_row() -> None:
    """docs/reference.md has one row for each event of a partition, with the cause and the next step, and no other."""
    table = text_of("reference.md").partition("<!-- events -->\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| [^|]{10,} \| [^|]{10,} \|$", table, re.MULTILINE)
    assert sorted(rows) == sorted(get_args(EventName))


def test_every_reason_for_a_missing_id_is_explained() -> None:
    """docs/ids.md has every reason that the module of the digests names, and no other."""
    reasons = set(re.findall(r"- ``([a-z-]+)``:", inspect.getdoc(Ids) or ""))
    table = text_of("ids.md").partition("| reason | the ID |")[2].partition("\n\n")[0]
    assert reasons == set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE))
    assert len(reasons) > 5


def drawn_tree() -> dict[str, str]:
    """The tree in the docstring of `dedup_sdk.errors`: each name with that of its parent, "" for the root."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (dedup_sdk.errors.__doc__ or "").split("\n\n")[1].splitlines():
        drawn = re.match(r"    ([│├└─ ]*)(\w+)", line)
        assert drawn, line
        depth = len(drawn[1]) // 4
        above[depth:] = [drawn[2]]
        parents[drawn[2]] = above[depth - 1] if depth else ""
    return parents


def test_the_tree_of_errors_is_the_one_that_is_drawn() -> None:
    """Each error class is in the module's tree under its real parent, and the tree has no other."""
    real = {name: error for name, error in vars(dedup_sdk.errors).items() if inspect.isclass(error)}
    assert drawn_tree() == {
        name: "" if error is DedupError else error.__bases__[0].__name__ for name, error in real.items()
    }
    assert all(issubclass(error, DedupError) and error.__doc__ for error in real.values())


@pytest.mark.parametrize(
    "made",
    [Bridge, Bridge.run, DedupConsumer, DedupConsumer.run, DedupProducer, Deduplicator, Recovery],
    ids=lambda made: made.__qualname__,
)
def test_every_setting_is_in_the_docstring(made: Callable[..., object]) -> None:
    """Each keyword of the constructor is explained where `help()` shows it."""
    names = [p.name for p in inspect.signature(made).parameters.values() if p.kind is not p.VAR_KEYWORD]
    names = [name for name in names if name != "self"]
    missing = [name for name in names if not re.search(rf"\b{name}\b", made.__doc__ or "")]
    assert missing == []


def test_settings_of_the_consumer_are_in_the_pages() -> None:
    """Each keyword that DedupConsumer adds to the plain client's is in a page."""
    names = [p.name for p in inspect.signature(DedupConsumer).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert [name for name in names if not re.search(rf"\b{name}=", EVERYTHING)] == []


def test_settings_of_a_run_are_in_their_page() -> None:
    """docs/handlers.md has each setting of run() in its table, with its default."""
    table = text_of("handlers.md").partition("| setting | default | |")[2].partition("\n\n")[0]
    for parameter in list(inspect.signature(DedupConsumer.run).parameters.values())[2:]:
        row = next(line for line in table.splitlines() if f"`{parameter.name}`" in line)
        default = parameter.default
        shown = {
            f'"{default}"',
            str(default),
            getattr(default, "__name__", ""),
            f"{default:,}" if default == 1_000 else "",
        }
        assert any(text and text in row for text in shown), parameter.name


def check_settings(of: type, table: str, *, without_default: tuple[str, ...] = ()) -> None:
    """A table has a row for each setting by keyword, with its default."""
    for parameter in inspect.signature(of).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        row = next(line for line in table.splitlines() if line.startswith(f"| `{parameter.name}`"))
        default = parameter.default
        shown = {f'`"{default}"`', f"`{default}`", f"`{default:_}`" if isinstance(default, int) else ""}
        assert parameter.name in without_default or any(text and text in row for text in shown), row


def test_settings_of_recovery_are_in_their_page() -> None:
    """docs/recovery.md has each setting of Recovery in its table, with its default."""
    table = text_of("recovery.md").partition("| setting | default | |")[2].partition("\n\n")[0]
    check_settings(Recovery, table, without_default=("snapshot",))


def test_settings_of_the_producer_are_in_their_page() -> None:
    """docs/producer.md has each setting of DedupProducer in its table, with its default, and each of its counters."""
    table = text_of("producer.md").partition("| setting | default | |")[2].partition("\n\n")[0]
    check_settings(DedupProducer, table, without_default=("outbox", "keys"))
    assert set(OutboxCounters().as_dict()) <= codes(text_of("producer.md"))


def test_settings_of_the_bridge_are_in_their_page() -> None:
    """docs/bridge.md has each setting of Bridge in its table, with its default, and each of its counters."""
    table = text_of("bridge.md").partition("| setting | option | default | |")[2].partition("\n\n")[0]
    check_settings(Bridge, table)
    assert set(BridgeCounters().as_dict()) <= codes(text_of("bridge.md"))


def test_what_is_set_by_us_is_what_is_documented() -> None:
    """The table of docs/reference.md has exactly the settings that the client gets beyond the user's configuration."""
    given = {
        "bootstrap.servers": "localhost:9092", "group.id": "g",
        "partition.assignment.strategy": "cooperative-sticky",
    }  # fmt: skip
    ours = {
        f"{name}={str(value).lower()}"
        for name, value in client_settings(given).client.items()
        if name not in given
    }
    table = text_of("reference.md").partition("## Settings that are ours")[2].partition("\n## ")[0]
    rows = "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert ours == codes(rows)


def test_what_is_documented_as_refused_is_refused() -> None:
    """Each setting of the table is refused with its own name in the message."""
    table = text_of("reference.md").partition("## Settings that are refused")[2].partition("##")[0]
    cells = [line.split("|")[1].strip() for line in table.splitlines() if re.match(r"\| (no )?`", line)]
    assert len(cells) == 3
    for cell in cells:
        name, _, value = cell.partition("`")[2].rstrip("`").partition("=")
        config = {"bootstrap.servers": "localhost:9092", "group.id": "g", name: value}
        with pytest.raises(ConfigurationError, match=re.escape(name)):
            client_settings(config)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_names_in_the_text_exist(page: Path) -> None:
    """A dotted name of ours that stands as code can be imported."""
    for code in codes(page.read_text(encoding="utf-8")):
        if re.fullmatch(r"(dedup_sdk|spark_backfill)(\.\w+)+(?<!\.py)", code):
            pkgutil.resolve_name(code)


def test_the_line_in_the_log_is_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lines of docs/operations.md are those of the README's loop, numbers of seconds apart."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, "dedup_sdk")
    with MockKafka() as kafka:
        kafka.create_topic("orders")
        stage = Stage(kafka.bootstrap, tmp_path)
        stage.run(stage.examples(ROOT / "README.md")[0])
    page = text_of("operations.md").replace("\n    ", " ")  # long lines are broken there
    documented = re.findall(r"^(?:assigned|ready|revoked) .*$", page, re.MULTILINE)
    # A slow machine has another one, on a start offset that is asked for again.
    said = [r.getMessage() for r in caplog.records if r.name == "dedup_sdk" and r.levelno == logging.INFO]
    written = [line for line in said if re.match("assigned|ready|revoked", line)]
    assert [re.sub(r"[\d.]+ s\b", "N s", line) for line in written] == [
        re.sub(r"[\d.]+ s\b", "N s", line) for line in documented
    ]


@pytest.mark.parametrize(
    ("page", "text", "value", "meant"),
    [
        ("README.md", "at most 1,000 records or 100 ms", (1_000, 0.1), (BATCH, MAINTENANCE_S)),
        ("docs/completion.md", "at most 1,000 records or 100 ms", (1_000, 0.1), (BATCH, MAINTENANCE_S)),
        ("docs/completion.md", "at 100,000 records the partition", 100_000, MOST_WAITING),
        ("docs/units.md", "once 100,000 records and as many", 100_000, MOST_OPEN),
        ("docs/units.md", "values of 256 MB", 256, Unit().megabytes),
        ("docs/guarantees.md", "of at most 1,000, after 100 ms", (1_000, 0.1), (BATCH, MAINTENANCE_S)),
        ("docs/guarantees.md", "once 20,000 messages", 20_000, MOST_UNWRITTEN),
        ("docs/handlers.md", "at most 1,000 characters", 1_000, MAX_ERROR_CHARS),
        ("docs/handlers.md", "half of `revoke_deadline`", 0.5, WAITING_SHARE),
        ("docs/ids.md", "more than 65,536 bytes", 65_536, MAX_ID_BYTES),
        ("docs/operations.md", "recent_marks=500_000", 500_000, RocksStore("unused").recent_marks),
        ("docs/recovery.md", "at most 50 ms", 0.05, SLICE_S),
        ("docs/recovery.md", "lock_wait=30", 30.0, RocksStore("unused").lock_wait_s),
        ("docs/windows.md", "a sixteenth of the window late", 16, GRACE),
    ],
)
def test_a_number_in_the_text_is_the_one_in_the_code(
    page: str, text: str, value: object, meant: object
) -> None:
    """Where a page names a limit, the code has that limit."""
    assert text in " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert value == meant


def test_what_the_readme_shows_of_the_demo_is_what_it_prints() -> None:
    """The table and the last line in the README are the demo's own rendering of those figures."""
    shown = (ROOT / "README.md").read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]
    steps, table, last = (part.strip("\n") for part in shown.split("\n\n"))
    assert [line[:3] for line in steps.splitlines()] == [f"{n}/{STEPS}" for n in range(1, STEPS + 1)]
    numbers = {
        row[:30].strip(): [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", row[30:])]
        for row in table.splitlines()[1:]
    }
    doubled, bound = numbers["handled twice, for the SIGKILL"]
    result = DemoResult(
        broker="kafka",
        records=numbers["records in the topic"][0],
        distinct_ids=numbers["distinct dedup IDs"][0],
        duplicates_in_topic=numbers["of them duplicates"][0],
        handled=numbers["handled"][0],
        lost=numbers["lost"][0],
        doubled=doubled,
        doubled_bound=bound,
        resent=numbers["sent again after the rebuild"][0],
        resent_handled=numbers["of them handled again"][0],
        rebuild_records_per_second=0,
        marks=numbers["IDs in the rebuilt store"][0],
        stores_equal=True,
        seconds=float(re.findall(r"(\d+) s$", last)[0]),
    )
    console = Console(width=120, no_color=True, file=io.StringIO(), highlight=False)
    with console.capture() as capture:
        console.print(result_table(result))
        console.print(last_line(result), soft_wrap=True)
    assert capture.get().split() == f"{table}\n{last}".split()
    assert result.handled == result.distinct_ids + doubled
    assert result.records == result.distinct_ids + result.duplicates_in_topic
