"""A base that does not fit is refused in one line, before Kafka or Spark is asked, and nothing is published."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk import Lookup
from dedup_sdk._core.source_keys import SourceKeys
from dedup_sdk._marks import join_marks
from dedup_sdk._store.manifest import read_manifest, write_manifest
from dedup_sdk._store.snapshot import SortedFileWriter, read_snapshot
from dedup_sdk._window import Window
from dedup_sdk.errors import DedupError
from dedup_sdk.ids import header
from spark_backfill.backfill import backfill
from spark_backfill.base import check_base_log, open_base
from spark_backfill.errors import BackfillError
from spark_backfill.on_spark import on_spark
from spark_backfill.options import Options, parse_options
from tests.support.naive_fold import Row, digest_of
from tests.support.rebuilding import rebuild

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ROWS = [Row(0, offset, 1_000 + offset, digest_of(offset)) for offset in range(9)]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A snapshot of group ``billing`` in topic ``orders``, by ``key``, with a window of a day."""
    rebuild(ROWS, Window(days=1), tmp_path / "base", high=9)
    return tmp_path / "base"


def options(base: Path | str, *more: str) -> Options:
    """The options of a run that adds to the base."""
    kafka = [] if "--compact" in more else ["--bootstrap", "127.0.0.1:1"]
    whose = [] if {"--compact", "--whole-topic", "--group"} & {*more} else ["--group", "billing"]
    given = ["--output", str(base) + "-grown", "--base", str(base), *kafka]
    return parse_options([*given, *whose, *more], print)


def no_session() -> SparkSession:
    """Fails: nothing may be started."""
    raise AssertionError("Spark was started for a base that does not fit")


def test_topic_id_and_window_are_those_of_the_base(base: Path) -> None:
    """Options not given are those of the base."""
    found = options(base)
    assert (found.topic, str(found.id), found.window) == ("orders", "key", Window(days=1))
    assert options(base, "--window", "2d").window == Window(days=2)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--topic", "payments"], "is of topic 'orders', not 'payments'"),
        (["--id", "header:dedup-id"], "is of id 'key', not 'header:dedup-id'"),
        (["--window", "100n"], "has the window 1d, not 100n: what a window by count remembers"),
        (["--window", "1d+100n"], "has the window 1d, not 1d\\+100n"),
        (["--whole-topic"], "is of group 'billing', not of a history that was vouched for"),
        (["--group", "other"], "is of group 'billing', not of group 'other'"),
        (["--assume-processed"], "is of group 'billing', not of a history that was vouched for"),
    ],
)
def test_a_base_of_something_else(base: Path, more: list[str], says: str) -> None:
    """One line has the difference and the remedy, and neither Kafka nor Spark is asked."""
    with pytest.raises(BackfillError, match=says) as caught:
        backfill(options(base, *more), on_spark(no_session))
    assert "\n" not in str(caught.value)
    assert "rebuild in full: once without --base" in str(caught.value)
    assert [each.name for each in base.parent.iterdir()] == ["base"]


@pytest.mark.parametrize("more", [[], ["--compact"]])
def test_a_base_with_payloads(base: Path, more: list[str]) -> None:
    """The payloads of `LastId` cannot be added to, and must not get lost.

    Refused, also where nothing is added.
    """
    manifest = read_manifest(base)
    entry = manifest.partitions[0]
    held = join_marks(list(read_snapshot(base, entry)))
    path = base / str(entry.partition) / f"{entry.files[0].name}.sst"
    with SortedFileWriter(path) as writer:
        writer.add(replace(held, payloads=[b"nine here", *[b""] * (held.count - 1)]))
        file = writer.finish()
    for each in entry.files[1:]:
        path.with_name(f"{each.name}.sst").unlink()
    write_manifest(base, replace(manifest, partitions=(replace(entry, files=(file,)),)))
    with pytest.raises(
        BackfillError, match=r"has marks with payloads, .*: rebuild in full: once without --base"
    ) as caught:
        backfill(options(base, *more), on_spark(no_session))
    assert "\n" not in str(caught.value)
    assert [each.name for each in base.parent.iterdir()] == ["base"]


def test_a_base_of_last_id(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the ID spec would be taken from it the line says that such a snapshot cannot be added to."""
    manifest = read_manifest(base)
    write_manifest(base, replace(manifest, id_spec=str(SourceKeys(header("seq"), None, "integer"))))
    with pytest.raises(SystemExit):
        parse_options(["--output", "out", "--base", str(base), "--bootstrap", "b:1", "--group", "g"], print)
    [line] = capsys.readouterr().out.splitlines()
    assert "is of LastId" in line
    assert "rebuild in full with --id and --order, without --base" in line


def test_a_base_whose_id_is_a_function_of_the_consumer(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No run can call it: one line says so, where the base gives the spec and where the user does."""
    told = "function:shop.ids:order_id@1"
    write_manifest(base, replace(read_manifest(base), id_spec=told))
    arguments = ["--output", "out", "--base", str(base), "--bootstrap", "b:1", "--group", "g"]
    for given in (arguments, [*arguments, "--id", told]):
        with pytest.raises(SystemExit) as ended:
            parse_options(given, print)
        assert ended.value.code == 2
        [line] = capsys.readouterr().out.splitlines()
        assert f"id spec {told!r} names a function of the consumer's program" in line
        assert "needs py:MODULE:CALLABLE@VERSION, here and in the consumer" in line


@pytest.mark.parametrize(
    "spec", ["py:{module}:make@1", "key+ py:{module}:make@1", "header:a+py:{module}:make%401"]
)
def test_a_base_whose_id_spec_names_code(
    base: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    """The module is not imported: one line says to give the spec. Given by the user, it is."""
    module = f"ids_{base.parent.name}"
    (base.parent / f"{module}.py").write_text(
        "from pathlib import Path\nPath(__file__).with_suffix('.imported').touch()\ndef make(record): "
        "return record.key\n"
    )
    monkeypatch.syspath_prepend(str(base.parent))
    told = spec.format(module=module)
    write_manifest(base, replace(read_manifest(base), id_spec=told))
    arguments = ["--output", "out", "--base", str(base), "--bootstrap", "b:1", "--group", "g"]
    with pytest.raises(SystemExit) as ended:
        parse_options(arguments, print)
    assert ended.value.code == 2
    [line] = capsys.readouterr().out.splitlines()
    assert f"id spec {told!r} names code, which is imported only where the user gives the spec" in line
    assert "with --id SPEC" in line
    assert not (base.parent / f"{module}.imported").exists()
    parse_options([*arguments, "--id", told], print)
    assert (base.parent / f"{module}.imported").exists()


def test_a_base_whose_id_spec_is_none(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says so, and names the option to give."""
    write_manifest(base, replace(read_manifest(base), id_spec="headers:dedup-id"))
    with pytest.raises(SystemExit):
        parse_options(["--output", "out", "--base", str(base), "--bootstrap", "b:1", "--group", "g"], print)
    [line] = capsys.readouterr().out.splitlines()
    assert "'headers:dedup-id' has none of the known forms" in line
    assert "with --id SPEC" in line


def test_a_base_of_units(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So does it where records belong to units."""
    keys = Lookup(id=header("seq"), window=Window(days=1), unit=header("dedup-unit")).keys
    write_manifest(base, replace(read_manifest(base), id_spec=str(keys)))
    with pytest.raises(SystemExit):
        parse_options(["--output", "out", "--base", str(base), "--bootstrap", "b:1", "--group", "g"], print)
    [line] = capsys.readouterr().out.splitlines()
    assert "has marks of units" in line
    assert "rebuild in full with --id and --unit, without --base" in line


def test_a_base_of_another_log(base: Path) -> None:
    """Cluster and topic have to be the same by their IDs.

    A broker that does not tell the topic's says nothing against it.
    """
    found = open_base(str(base))
    check_base_log(found, cluster="c", topic_id="t", partitions=[0])
    check_base_log(found, cluster="c", topic_id="", partitions=())
    with pytest.raises(BackfillError, match="is of cluster 'c', not 'd'"):
        check_base_log(found, cluster="d", topic_id="t", partitions=[0])
    with pytest.raises(BackfillError, match="is of topic ID 't', not 'u'"):
        check_base_log(found, cluster="c", topic_id="u", partitions=[0])
    with pytest.raises(BackfillError, match="has partition 0, the topic has 1 partition"):
        check_base_log(found, cluster="c", topic_id="t", partitions=[1])


def test_a_base_that_was_resharded(base: Path) -> None:
    """Its marks of other partitions would be taken for this one's."""
    write_manifest(base, replace(read_manifest(base), resharded_from=(0,), partitioner="murmur2"))
    with pytest.raises(
        BackfillError, match="was re-sharded and has marks of other partitions: rebuild in full"
    ):
        backfill(options(base), on_spark(no_session))


def break_manifest(base: Path) -> None:
    """Nobody finished writing it."""
    (base / "manifest.json").unlink()


def cut_manifest(base: Path) -> None:
    """A copy that broke off."""
    (base / "manifest.json").write_bytes((base / "manifest.json").read_bytes()[:200])


def lose_file(base: Path) -> None:
    """A sorted file was not copied."""
    next((base / "0").glob("00000-*.sst")).unlink()


def lose_filter(base: Path) -> None:
    """The filter words beside one were not."""
    next((base / "0").glob("00000-*.filter")).unlink()


def cut_file(base: Path) -> None:
    """A sorted file was copied in part."""
    path = next((base / "0").glob("00000-*.sst"))
    path.write_bytes(path.read_bytes()[:-1])


def be_two(base: Path) -> None:
    """The folder holds several snapshots."""
    for name in ("monday", "tuesday"):
        shutil.copytree(base, base.parent / "several" / name)
    shutil.rmtree(base)
    (base.parent / "several").rename(base)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (break_manifest, "manifest.json does not exist"),
        (cut_manifest, "manifest.json is not JSON"),
        (lose_file, ".sst cannot be read: No such file"),
        (lose_filter, ".filter cannot be read: No such file"),
        (cut_file, "its manifest says"),
        (be_two, "holds 2 snapshots"),
        (shutil.rmtree, "does not exist"),
    ],
)
@pytest.mark.parametrize("given", [[], ["--topic", "orders", "--id", "key", "--window", "1d"]])
def test_a_base_that_is_not_whole(
    base: Path, damage: Any, says: str, given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A snapshot that is half there is refused in one line, with status 1.

    Whether its manifest is asked for the topic or not makes no difference.
    """
    damage(base)
    with pytest.raises((DedupError, SystemExit)) as caught:
        backfill(options(base, *given), on_spark(no_session))
    line = str(caught.value)
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 1
        line = capsys.readouterr().out.strip()
        assert line.startswith("error: ")
    assert says in line
    assert "\n" not in line
    assert not base.with_name("base-grown").exists()
    assert not list(base.parent.glob(".*"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--compact", "--group", "billing"], "--compact reads no history, and --group is about that"),
        (["--compact", "--whole-topic"], "--compact reads no history, and --whole-topic"),
        (["--compact", "--source", "kafka"], "--compact reads no history, and --source"),
        (["--compact", "--report", "page"], "--compact reads no history, and --report"),
        (["--expire-before", "soon"], "--expire-before 'soon' is no time: give e.g."),
        (["--expire-before", "20n"], "--expire-before '20n' is no time"),
        (["--expire-before", "2999-01-01"], "--expire-before '2999-01-01' lies in the future"),
        (["--base", ""], "--base is empty"),
        (["--partitions", "4", "--partitioner", "murmur2"], "--base and --partitions do not go together"),
    ],
)
def test_wrong_usage(base: Path, more: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Options that contradict each other or cannot be read are named, with status 2."""
    with pytest.raises(SystemExit) as end:
        options(base, *more)
    assert end.value.code == 2
    assert says in capsys.readouterr().out


def test_compact_without_a_base(capsys: pytest.CaptureFixture[str]) -> None:
    """There has to be something to write again."""
    with pytest.raises(SystemExit) as end:
        parse_options(["--compact", "--output", "out"], print)
    assert end.value.code == 2
    assert "--compact needs --base: the snapshot" in capsys.readouterr().out


def test_times_are_read_as_dates_and_ages(base: Path) -> None:
    """A date is in UTC unless it says otherwise; an age counts back from now."""
    at = {text: options(base, "--expire-before", text).expire_before_ms for text in (
        "2024-05-01", "2024-05-01T00:00:00+02:00", "2024-05-01T10:00:00.250",
    )}  # fmt: skip
    midnight = 1_714_521_600_000
    assert list(at.values()) == [midnight, midnight - 7_200_000, midnight + 36_000_250]
    ago = options(base, "--expire-before", "12h").expire_before_ms
    assert ago is not None
    expected = datetime.now(UTC) - timedelta(hours=12)
    assert abs(ago - expected.timestamp() * 1_000) < 60_000
