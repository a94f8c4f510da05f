"""The command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dedup_sdk import LastId, Lookup, Unit, Window, header, orders
from dedup_sdk.ids import key
from spark_backfill.archive_options import KAFKA
from spark_backfill.console import FOLDER
from spark_backfill.option_list import GROUPS
from spark_backfill.options import Options, parse_options

GOOD = [
    "--bootstrap",
    "b:9092",
    "--topic",
    "orders",
    "--id",
    "header:dedup-id",
    "--window",
    "7d",
    "--output",
    "out",
]
GROUP = ["--group", "billing"]
WHOLE = ["--whole-topic"]
ASKING = [*WHOLE, "--order", "integer", "--otherwise", "key", "--otherwise-window"]
COMMITTED = ["--archive-isolation", "read_committed"]


def parsed(*more: str) -> Options:
    """The options of a good command line and the additions."""
    return parse_options([*GOOD, *more], print)


def test_values_are_read_into_their_types() -> None:
    """Spec, window and path are values; for the whole topic the user vouches."""
    options = parsed(*WHOLE)
    assert (str(options.id), options.window, options.output) == (
        "header:dedup-id",
        Window(days=7),
        str(Path("out").absolute()),
    )
    assert options.vouched
    assert options.group is None
    assert (parsed(*GROUP).group, parsed(*GROUP).vouched) == ("billing", False)
    assert parsed(*GROUP, "--assume-processed").vouched


def test_an_order_says_that_ids_are_compared() -> None:
    """Then ID, source and order are read of a record.

    The depth is the strategy's own, and a silent source is remembered for thirty days.
    """
    assert (parsed(*WHOLE).last_id, str(parsed(*WHOLE).spec)) == (None, "header:dedup-id")
    options = parsed(*GROUP, "--order", "snowflake(epoch_ms=5)", "--source-id", "header:producer")
    assert options.last_id is not None
    same = LastId(
        id=header("dedup-id"),
        order=orders.snowflake(epoch_ms=5),
        source=header("producer"),
        window=Window(days=7),
    )
    assert options.last_id.strategy == same
    assert (str(options.spec), options.window) == (str(same.keys), Window(days=7))
    without = [each for each in GOOD if each not in ("--window", "7d")]
    usual = parse_options([*without, *WHOLE, "--order", "integer", "--reorder-depth", "3"], print)
    assert usual.last_id is not None
    assert usual.window == Window(days=30)
    assert usual.last_id.strategy == LastId(id=header("dedup-id"), order=orders.integer(), reorder_depth=3)


def test_a_second_opinion_has_an_id_and_a_window_of_its_own() -> None:
    """The strategy has both.

    History is read, and marks are kept, for the longer of the windows, while the snapshot's is that of the
    sources.
    """
    said = ("--order", "integer", "--otherwise", "header:b+header:a", "--otherwise-window")
    for second, reach in (("36h", Window(days=7)), ("9d", Window(days=9))):
        options = parsed(*GROUP, *said, second)
        assert options.last_id is not None
        same = LastId(
            id=header("dedup-id"),
            order=orders.integer(),
            otherwise=Lookup(id=header("b") + header("a"), window=Window.parse(second)),
            window=Window(days=7),
        )
        assert options.last_id.strategy == same
        assert str(options.spec) == str(same.keys)
        assert (options.window, options.reach) == (Window(days=7), reach)
    assert parsed(*GROUP, *said, "9d", "--expire-before", "8d").expire_before_ms is not None
    assert parsed(*GROUP).reach == Window(days=7)


def test_a_unit_says_that_records_belong_together() -> None:
    """Then ID and unit are read of a record, with the strategy's values where no others are given."""
    usual = parsed(*GROUP, "--unit", "header:dedup-unit")
    assert usual.units is not None
    same = Lookup(id=header("dedup-id"), window=Window(days=7), unit=header("dedup-unit"))
    assert (usual.units.strategy, str(usual.spec)) == (same, str(same.keys))
    said = [
        "--unit-size-header",
        "n",
        "--unit-end-header",
        "last",
        "--unit-mode",
        "members",
        "--unit-repeats",
        "deliver",
    ]
    options = parsed(*GROUP, "--unit", "key", *said, "--unit-records", "9")
    assert options.units is not None
    unit = Unit(id=key(), size_header="n", end_header="last", repeats="deliver", records=9)
    other = Lookup(id=header("dedup-id"), window=Window(days=7), unit=unit, unit_mode="members")
    assert (options.units.strategy, str(options.spec)) == (other, str(other.keys))


def test_settings_reach_the_client_they_are_meant_for() -> None:
    """Those of every client go to both, and an equals sign may be in a value.

    The Java client's own replace them there.
    """
    options = parsed(
        *GROUP, "--client-config", "security.protocol=SSL", "--client-config", "a.b=y=z",
    )  # fmt: skip
    assert options.client_config == {"security.protocol": "SSL", "a.b": "y=z"}


def test_the_servers_may_be_in_a_file(tmp_path: Path) -> None:
    """An option replaces them; they are no setting of the clients any more."""
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=in-the-file:9092\nsecurity.protocol=SSL\n")
    own = parsed(*GROUP, "--client-config", str(file))
    of_file = parse_options([*GOOD[2:], *GROUP, "--client-config", str(file)], print)
    assert (own.bootstrap, of_file.bootstrap) == ("b:9092", "in-the-file:9092")
    assert own.client_config == of_file.client_config == {"security.protocol": "SSL"}


def test_the_file_of_a_consumer_serves_the_job(tmp_path: Path) -> None:
    """Its group is the one whose history is folded, unless an option says otherwise.

    Settings of the job itself are left out.
    """
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=b:9092\ngroup.id=shipping\nauto.offset.reset=earliest\nenable.auto.commit=false\n"
        "isolation.level=read_committed\nsecurity.protocol=SSL\n"
    )
    given = ["--client-config", str(file)]
    options = parsed(*given)
    assert (options.group, options.client_config) == ("shipping", {"security.protocol": "SSL"})
    assert parsed(*GROUP, *given).group == "billing"
    assert parsed(*WHOLE, *given).group is None


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ([*GROUP, "--window", "0d"], "window of zero"),
        ([*GROUP, "--report", "s3://key:hunter2@b/page"], "--report 's3://***@b/page' is a URL, and must be"),
        ([*GROUP, "--report", "a\0b"], "has a NUL character; give a folder"),
        ([*GROUP, "--window", "a week"], "'a week'"),
        ([*GROUP, "--id", "headr:x"], "'headr:x'"),
        ([*GROUP, "--id", "py:no_such_module:f@1"], "no_such_module"),
        ([*GROUP, "--client-config", "isolation.level=read_uncommitted"], "isolation.level cannot be set"),
        ([*GROUP, "--client-config", "group.id"], "--client-config group.id cannot be read: No such file"),
        ([*GROUP, "--client-config", "=1"], "=*** is not a file"),
        ([], "give --group GROUP (what that group has processed), or --whole-topic (you vouch"),
        ([*GROUP, *WHOLE], "--group and --whole-topic do not go together"),
        ([*WHOLE, "--assume-processed"], "--assume-processed needs --group"),
        ([*GROUP, "--dead-letters", "x"], "unrecognized arguments: --dead-letters x; see"),
        ([*GROUP, "--bootstap", "b:9092"], "--bootstap b:9092; did you mean --bootstrap? see"),
        ([*GROUP, "--bootstap=b:9092"], "--bootstap=***; did you mean --bootstrap? see"),
        (
            [*GROUP, "--master", "yarn"],
            "--master is an option of spark-submit: put it into $DEDUP_SPARK_ARGS; see",
        ),
        (
            [*GROUP, "--kafka-config", "sasl.password=hunter2"],
            "arguments: --kafka-config sasl.password=***; see",
        ),
        ([*GROUP, "--topic", ""], "--topic is empty"),
        (["--group", ""], "--group is empty"),
        ([*GROUP, "--group", "shipping"], "--group is given more than once: make a snapshot for each"),
        ([*GROUP, "--partitioner", "murmur2"], "--partitioner needs --partitions"),
        ([*GROUP, "--base", "no-such-folder", "--compact"], "--compact reads no history, and --"),
        ([*GROUP, "--compact"], "--compact needs --base"),
        (["--over"], "--over"),
        ([*WHOLE, "--order", "ulids"], "no order is called 'ulids'; give one of big-endian, "),
        ([*WHOLE, "--order", "py:no_such_module:f"], "no_such_module"),
        ([*WHOLE, "--order", "integer", "--window", "7d+5n"], "--window 7d+5n: with --order it is how long"),
        ([*WHOLE, "--order", "integer", "--source-id", "headr:x"], "'headr:x'"),
        ([*WHOLE, "--order", "integer", "--reorder-depth", "-1"], "reorder_depth=-1: give a whole number"),
        ([*WHOLE, "--order", "integer", "--reorder-depth", "few"], "--reorder-depth"),
        ([*WHOLE, "--source-id", "key"], "--source-id needs --order"),
        ([*WHOLE, "--parallelism", "0"], "--parallelism 0: give the number of tasks that run at a time"),
        ([*WHOLE, "--parallelism", "1000001"], "--parallelism 1000001: give the number of tasks"),
        ([*WHOLE, "--parallelism", "many"], "--parallelism"),
        ([*WHOLE, "--reorder-depth", "3"], "--reorder-depth needs --order"),
        ([*WHOLE, "--order", "integer", "--report", "r"], "--report and --order do not go together"),
        ([*WHOLE, "--order", "integer", "--base", "no-such-folder"], "--base and --order do not go together"),
        ([*WHOLE, "--order", "integer", "--compact"], "--compact and --order do not go together"),
        ([*WHOLE, "--otherwise", "key"], "--otherwise needs --order: it is an option of LastId"),
        ([*WHOLE, "--otherwise-window", "7d"], "--otherwise-window needs --order"),
        (
            [*WHOLE, "--order", "integer", "--otherwise", "key"],
            "--otherwise needs --otherwise-window: give the window of the consumer's otherwise=Lookup(...)",
        ),
        (
            [*WHOLE, "--order", "integer", "--otherwise-window", "7d"],
            "--otherwise-window needs --otherwise: say which ID",
        ),
        ([*ASKING, "7d+5n"], "--otherwise-window 7d+5n: a second opinion's window is a length of time alone"),
        ([*ASKING, "off"], "--otherwise-window off: a second opinion's window is a length of time alone"),
        ([*ASKING, "soon"], "'soon'"),
        ([*WHOLE, "--order", "integer", "--otherwise", "headr:x", "--otherwise-window", "7d"], "'headr:x'"),
        (
            [*ASKING, "9d", "--expire-before", "30d"],
            "--expire-before 30d is longer than --otherwise-window 9d",
        ),
        ([*ASKING, "9d", "--base", "no-such-folder"], "--base and --order do not go together"),
        ([*ASKING, "9d", "--compact"], "--compact and --order do not go together"),
        ([*ASKING, "9d", "--report", "r"], "--report and --order do not go together"),
        (
            [*GROUP, "--order", "integer", "--partitions", "4", "--partitioner", "murmur2"],
            "--partitions and --order do not go together",
        ),
        ([*WHOLE, "--unit", "headr:x"], "'headr:x'"),
        ([*WHOLE, "--unit", ""], "--unit is empty"),
        ([*WHOLE, "--unit", "key", "--unit-mode", "half"], "unit_mode='half'"),
        ([*WHOLE, "--unit", "key", "--unit-repeats", "keep"], "repeats='keep'"),
        ([*WHOLE, "--unit", "key", "--unit-records", "0"], "records=0: give a whole number"),
        ([*WHOLE, "--unit", "key", "--unit-records", "few"], "--unit-records"),
        ([*WHOLE, "--unit", "key", "--unit-end-header", ""], "header"),
        ([*WHOLE, "--unit", "key", "--unit-end-header", "dedup-unit-size"], "is the end_header, too"),
        ([*WHOLE, "--unit-mode", "members"], "--unit-mode needs --unit"),
        ([*WHOLE, "--unit-size-header", "size"], "--unit-size-header needs --unit"),
        ([*WHOLE, "--unit", "key", "--order", "integer"], "--order and --unit do not go together"),
        ([*WHOLE, "--unit", "key", "--base", "no-such-folder"], "--base and --unit do not go together"),
        ([*WHOLE, "--unit", "key", "--compact"], "--compact and --unit do not go together"),
        ([*WHOLE, "--unit", "key", "--report", "r"], "--report and --unit do not go together"),
        (
            [*GROUP, "--unit", "key", "--partitions", "4", "--partitioner", "murmur2"],
            "--partitions and --unit do not go together: a unit lies in one partition",
        ),
        ([*WHOLE, "--expire-before", "30d"], "--expire-before 30d is longer than --window 7d"),
        ([*WHOLE, "--partitioner", "murmur2"], "--partitioner needs --partitions"),
        ([*GROUP, "--partitions", "4"], "--partitions needs --partitioner"),
        ([*GROUP, "--partitions", "0", "--partitioner", "murmur2"], "a topic has 1 to"),
        ([*GROUP, "--partitions", "four"], "--partitions"),
        ([*GROUP, "--partitions", "4", "--partitioner", "random"], "murmur2"),
        (
            [*WHOLE, "--partitions", "4", "--partitioner", "murmur2"],
            "--whole-topic and --partitions do not go together: marks go to other partitions",
        ),
        (
            [*GROUP, "--assume-processed", "--partitions", "4", "--partitioner", "murmur2"],
            "--assume-processed and --partitions do not go together: marks go to other partitions",
        ),
        (
            [*GROUP, "--partitions", "4", "--partitioner", "murmur2", "--window", "7d+5n"],
            "--window 7d+5n cannot be re-sharded",
        ),
        (
            [
                *GROUP,
                "--partitions",
                "4",
                "--partitioner",
                "murmur2",
                "--source",
                "x",
                *COMMITTED,
                "--columns",
                "key=-",
            ],
            "--columns key=- says that there are none",
        ),
        ([*WHOLE, "--cluster-id", "c"], "--cluster-id and --topic-id are asked of --bootstrap"),
        ([*WHOLE, "--format", "delta"], "--format is about an archive, and none is given"),
        ([*WHOLE, "--source", "a"], "does 'a' have records of aborted transactions? say --archive-isolation"),
        ([*WHOLE, "--source", "", *COMMITTED], "--source is empty"),
        ([*WHOLE, "--source", "table:", *COMMITTED], "--source is empty"),
        ([*WHOLE, "--source", "a", "--columns", "x=y", *COMMITTED], "Kafka has no column 'x'"),
        ([*WHOLE, "--source", "a", "--read-option", "x", *COMMITTED], "--read-option 'x' is no setting"),
        (
            [*WHOLE, "--source", KAFKA, "--source", "a", "--archive-isolation", "read_uncommitted"],
            f"read_uncommitted and --source {KAFKA} do not go together",
        ),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(wrong: list[str], names: str) -> None:
    """Whatever is wrong with the arguments, one line names it."""
    said: list[str] = []
    with pytest.raises(SystemExit) as end:
        parse_options([*GOOD, *wrong], said.append)
    assert end.value.code == 2
    (line,) = said
    assert line.startswith("error: ")
    assert names in line
    assert "\n" not in line


def test_settings_of_clients_that_are_not_there_are_refused() -> None:
    """An archive alone is read without Kafka."""
    asked = ["--source", "x", *COMMITTED, "--cluster-id", "c", "--topic-id", "t", *WHOLE]
    said: list[str] = []
    with pytest.raises(SystemExit) as end:
        parse_options([*GOOD[2:], *asked, "--client-config", "client.id=x"], said.append)
    assert end.value.code == 2
    assert said == [
        (
            "error: --client-config is for clients of Kafka, and without --bootstrap there is none: leave it "
            "out, or give --bootstrap HOST:PORT"
        )
    ]


@pytest.mark.parametrize(
    ("before", "window"), [("6d", "7d"), ("7d", "7d"), ("2020-01-01", "7d"), ("30d", "9n")]
)
def test_what_expires_earlier_or_on_a_day_is_taken(before: str, window: str) -> None:
    """A window keeps records a little late; a date grows older, and a command with it stays right."""
    given = [window if each == "7d" else each for each in GOOD]
    options = parse_options([*given, *WHOLE, "--expire-before", before], print)
    assert options.expire_before_ms is not None


def test_rules_name_options() -> None:
    """An option needs, or does not go beside, options that there are."""
    listed = [option for group in GROUPS.values() for option in group]
    names = [option.name for option in listed]
    assert len(set(names)) == len(names)
    assert {other for option in listed for other in (*option.needs, *option.beside)} <= set(names)


def test_missing_options_are_named() -> None:
    """A call without anything names the required options."""
    said: list[str] = []
    with pytest.raises(SystemExit):
        parse_options([], said.append)
    assert all(option in said[0] for option in ("--topic", "--id", "--window", "--output"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (WHOLE, f"--source {KAFKA} needs --bootstrap"),
        (
            [*WHOLE, "--source", "a", *COMMITTED],
            "give --bootstrap HOST:PORT, or both --cluster-id and --topic-id",
        ),
        ([*WHOLE, "--source", "a", *COMMITTED, "--cluster-id", "c"], "or both --cluster-id and --topic-id"),
        (
            [*GROUP, "--source", "a", *COMMITTED, "--cluster-id", "c", "--topic-id", "t"],
            "--group needs --bootstrap",
        ),
    ],
)
def test_without_a_broker_its_identity_has_to_be_given(more: list[str], says: str) -> None:
    """Facts asked of a broker have to be given where there is none, and facts only a broker knows cannot be had."""
    said: list[str] = []
    with pytest.raises(SystemExit):
        parse_options([*GOOD[2:], *more], said.append)
    assert says in said[0]


def test_sources_of_all_kinds() -> None:
    """Kafka alone is the default; archives are read instead of it, or beside it where it is named, too."""
    assert (parsed(*WHOLE).reads_topic, parsed(*WHOLE).archive) == (True, None)
    given = [
        *WHOLE,
        *COMMITTED,
        "--source",
        "a",
        "--source",
        "table:b.c",
        "--format",
        "json",
        "--columns",
        "offset=o",
    ]
    alone = parsed(*given, "--packages", "a:b:1,c:d:2", "--packages", "e:f:3")
    assert not alone.reads_topic
    assert alone.packages == ("a:b:1", "c:d:2", "e:f:3")
    assert alone.archive is not None
    assert (alone.archive.places, alone.archive.format) == (("a", "table:b.c"), "json")
    both = parsed(*given, "--source", KAFKA, "--source", "s3a://key:hidden@bucket/x")
    assert both.reads_topic
    assert both.sources == (KAFKA, "a", "table:b.c", "s3a://***@bucket/x")


def test_what_lies_here_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders, sources and patterns of them, and files that settings name become absolute; URLs and tables stay.

    So does a source where bare paths may be elsewhere.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "ca.pem").touch()
    (tmp_path / "client.properties").write_text("ssl.ca.location=ca.pem\nssl.key.location=none.pem\n")
    given = [*WHOLE, *COMMITTED, "--client-config", "client.properties"]
    places = ["archive/*.parquet", "new", "s3a://a/b", "file:/a/b", "table:x"]
    options = parsed(*given, *(word for place in places for word in ("--source", place)))
    assert options.archive is not None
    assert options.archive.places == (
        str(tmp_path / "archive" / "*.parquet"), str(tmp_path / "new"), "s3a://a/b", "file:/a/b", "table:x",
    )  # fmt: skip
    assert options.output == str(tmp_path / "out")
    assert options.client_config == {
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.key.location": "none.pem",
    }
    dated = parsed(*given, "--source", "dumps/2024-05-01T12:00").archive
    assert dated is not None
    assert dated.places == (str(tmp_path / "dumps" / "2024-05-01T12:00"),)
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    elsewhere = parsed(*given, "--source", "new").archive
    assert elsewhere is not None
    assert elsewhere.places == ("new",)


def test_who_submits_the_job_says_where_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without our launcher, files that Spark sends along, and sources of its default file system, keep their names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ca.pem").touch()
    options = parsed(
        *WHOLE, *COMMITTED, "--client-config", "ssl.ca.location=ca.pem", "--source", "lake/orders"
    )
    assert options.client_config == {"ssl.ca.location": "ca.pem"}
    assert options.archive is not None
    assert options.archive.places == ("lake/orders",)
