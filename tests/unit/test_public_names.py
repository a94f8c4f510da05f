from __future__ import annotations

import ast
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

import dedup_adapters
import dedup_sdk
import dedup_sdk.orders
import spark_backfill
from dedup_sdk.shared import Shared

PUBLIC = {
    "dedup_sdk": [
        "ConfigurationError",
        "Counters",
        "Coverage",
        "DeadLetter",
        "DeadLetterError",
        "DedupConsumer",
        "DedupError",
        "Deduplicator",
        "Health",
        "Histogram",
        "IdSpec",
        "LastId",
        "Lookup",
        "METRICS",
        "MemoryStore",
        "Metric",
        "Metrics",
        "MissingIdError",
        "PartitionEvent",
        "PartitionObserver",
        "PartitionStatus",
        "Record",
        "Recovery",
        "RecoveryError",
        "RocksStore",
        "Sample",
        "Settled",
        "StoreError",
        "Unit",
        "Verdict",
        "VerdictEvent",
        "VerdictKind",
        "Window",
        "Windows",
        "cloudevents",
        "header",
        "id_spec",
        "ids_of",
        "original_headers",
        "required_window",
    ],
    "dedup_sdk.aio": [
        "AsyncDedupConsumer",
    ],
    "dedup_sdk.bridge": [
        "Bridge",
        "BridgeCounters",
        "BridgeError",
    ],
    "dedup_sdk.ids": [
        "MAX_ID_BYTES",
        "Fields",
        "IdSpec",
        "Ids",
        "Leaf",
        "RecordFields",
        "cloudevents",
        "digest_one",
        "digest_parts",
        "function",
        "header",
        "id_spec",
        "json",
        "key",
        "py",
        "unframed_key",
        "value",
    ],
    "dedup_sdk.producer": [
        "DedupProducer",
        "Outbox",
        "OutboxDamagedError",
        "OutboxError",
        "OutboxFullError",
        "OutboxLockedError",
        "Outgoing",
        "ProducerKey",
        "ProducerKeys",
        "Step",
        "Stored",
        "Uuid7Keys",
        "as_bytes",
        "pack_headers",
        "pairs",
        "usable_id",
        "why_unusable",
    ],
    "dedup_sdk.shared": [
        "Claim",
        "ClaimKind",
        "ClaimStore",
        "MemoryClaimStore",
        "Shared",
        "SharedStoreError",
        "scope_name",
        "scoped_ids",
    ],
    "dedup_sdk.testing": [
        "CuttingProxy",
        "LocalKafka",
        "MockKafka",
        "free_port",
    ],
}
"""The public names by package, but for the errors and the orders.

All of `dedup_sdk.errors` and `dedup_sdk.orders` are.
"""
ADAPTERS = [
    "artemis",
    "cmq",
    "conventions",
    "faststream",
    "health",
    "hornetq",
    "opentelemetry",
    "prometheus",
    "redis",
    "solace",
    "sql",
    "sql_outbox",
]
"""The public modules of `dedup_adapters`."""
NAMES = [(package, name) for package, names in PUBLIC.items() for name in names]
MOST_TOP_LEVEL_NAMES = 40
MOVED = [
    ("Bridge", "dedup_sdk.bridge"),
    ("BridgeCounters", "dedup_sdk.bridge"),
    ("BridgeError", "dedup_sdk.bridge"),
    ("ForeignStoreError", "dedup_sdk.errors"),
    ("IdSpecError", "dedup_sdk.errors"),
    ("KafkaHelperError", "dedup_sdk.errors"),
    ("SnapshotError", "dedup_sdk.errors"),
    ("StoreCorruptError", "dedup_sdk.errors"),
    ("StoreLockedError", "dedup_sdk.errors"),
    ("StoreUnavailableError", "dedup_sdk.errors"),
    ("json", "dedup_sdk.ids"),
    ("key", "dedup_sdk.ids"),
    ("py", "dedup_sdk.ids"),
    ("value", "dedup_sdk.ids"),
    ("DedupProducer", "dedup_sdk.producer"),
    ("OutboxDamagedError", "dedup_sdk.producer"),
    ("OutboxError", "dedup_sdk.producer"),
    ("OutboxFullError", "dedup_sdk.producer"),
    ("OutboxLockedError", "dedup_sdk.producer"),
    ("ProducerKey", "dedup_sdk.producer"),
    ("ProducerKeys", "dedup_sdk.producer"),
    ("Uuid7Keys", "dedup_sdk.producer"),
    ("Claim", "dedup_sdk.shared"),
    ("ClaimKind", "dedup_sdk.shared"),
    ("ClaimStore", "dedup_sdk.shared"),
    ("MemoryClaimStore", "dedup_sdk.shared"),
    ("Shared", "dedup_sdk.shared"),
    ("SharedStoreError", "dedup_sdk.shared"),
    ("scope_name", "dedup_sdk.shared"),
    ("scoped_ids", "dedup_sdk.shared"),
]
"""The names that moved out of `dedup_sdk`, and their places."""
PACKAGES = [dedup_sdk, dedup_adapters, spark_backfill]
OPTIONAL = (
    "dedup_adapters",
    "dedup_sdk.bridge",
    "dedup_sdk._cli",
    "dedup_sdk._demo",
    "dedup_sdk.producer",
    "dedup_sdk.testing",
    "spark_backfill",
)
"""Modules that a consumer does not need."""
MOST_MODULES_OF_A_CONSUMER = 111
"""A limit that only falls: lower it when there are fewer. Ten of them are the parts of a recovery, one each, and
thirteen the parts of the way of a message."""


def loaded(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement, beyond those that it begins with."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def ours(names: set[str]) -> set[str]:
    """Those modules that are of this repository."""
    return {name for name in names if name.startswith(("dedup_sdk", "dedup_adapters", "spark_backfill"))}


def modules() -> list[str]:
    """Every module of the wheel but those that run when they are imported."""
    return [
        module.name
        for package in PACKAGES
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not module.name.endswith("__main__")
    ]


def test_the_public_names_are_these() -> None:
    """The names that users may import are decided, and there; at the top are few names, sorted."""
    for package, names in PUBLIC.items():
        assert import_module(package).__all__ == names
        assert all(hasattr(import_module(package), name) for name in names)
    assert PUBLIC["dedup_sdk"] == sorted(PUBLIC["dedup_sdk"])
    assert len(PUBLIC["dedup_sdk"]) <= MOST_TOP_LEVEL_NAMES
    assert dedup_sdk.orders.__all__ == sorted(dedup_sdk.orders.__all__)
    assert all(getattr(dedup_sdk.orders, name).__doc__ for name in dedup_sdk.orders.__all__)


def test_a_private_module_is_private_by_name() -> None:
    """As in most libraries: an import of names that may change between versions shows an underscore."""
    named = {
        name
        for name in modules()
        if name.startswith("dedup_sdk") and not any(part.startswith("_") for part in name.split("."))
    }
    assert named | {"dedup_sdk"} == {*PUBLIC, "dedup_sdk.errors", "dedup_sdk.orders"}


def test_a_private_module_of_the_adapters_is_private_by_name() -> None:
    """Those that users import are the adapters themselves, and each is in the documentation or an example."""
    named = {
        name.removeprefix("dedup_adapters.")
        for name in modules()
        if name.startswith("dedup_adapters.") and not any(part.startswith("_") for part in name.split("."))
    }
    assert sorted(named) == ADAPTERS
    root = Path(__file__).parents[2]
    text = "".join(page.read_text() for page in (*root.glob("docs/*.md"), *root.glob("examples/*.py")))
    imported = set(re.findall(r"from dedup_adapters\.(\w+(?:\.\w+)*) import", text))
    for names in re.findall(r"from dedup_adapters import ([\w, ]+)", text):
        imported |= {name.strip() for name in names.split(",")}
    assert sorted(imported) == ADAPTERS
    assert re.findall(r"\bdedup_adapters\.(?:\w+\.)*_\w+", text) == []


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "dedup_sdk.ids"])
def test_type_checkers_and_the_interpreter_find_the_same_names(name: str) -> None:
    """The imports that type checkers read, the table that the interpreter reads, and the list of names are one list."""
    package = import_module(name)
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    (checked,) = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imported = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    [table] = [
        node.value for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_MODULES" and node.value is not None
    ]  # fmt: skip
    assert imported == {each: module for module, names in ast.literal_eval(table).items() for each in names}
    assert sorted(imported) == package.__all__


@pytest.mark.parametrize(("name", "place"), MOVED)
def test_a_name_that_moved_warns(name: str, place: str) -> None:
    """It is found for one version, with its new place, at each place that imports it; nothing lists it any more."""
    for _ in range(2):
        with pytest.warns(DeprecationWarning, match=f"write 'from {place} import {name}'") as caught:
            assert getattr(dedup_sdk, name) is getattr(import_module(place), name)
        assert [each.filename for each in caught] == [__file__]
    assert name not in dir(dedup_sdk)
    assert name not in dedup_sdk.__all__


def test_importing_the_package_loads_nothing_that_is_not_used() -> None:
    """`import dedup_sdk` loads no client, no store, no asyncio, and of ours only the fields of log records."""
    found = loaded("import dedup_sdk")
    assert ours(found) == {"dedup_sdk", "dedup_sdk._log_fields"}
    assert found & {"asyncio", "confluent_kafka", "numpy", "rocksdict"} == set()


@pytest.mark.parametrize(
    "package", ["dedup_sdk.bridge", "dedup_sdk.producer", "dedup_sdk.shared", "dedup_sdk.testing"]
)
def test_importing_a_package_loads_none_of_its_modules(package: str) -> None:
    """Its names cost nothing until they are used."""
    found = loaded(f"import {package}")
    assert ours(found) == {"dedup_sdk", "dedup_sdk._lazy_names", "dedup_sdk._log_fields", package}
    assert found & {"asyncio", "confluent_kafka", "numpy", "rocksdict", "sqlite3"} == set()


def test_a_name_loads_what_it_is_made_of() -> None:
    """A spec loads no client; a consumer loads no bridge, producer, command or test helper."""
    assert (
        loaded("from dedup_sdk import header, Window, DedupError")
        & {"asyncio", "confluent_kafka", "rocksdict"}
        == set()
    )
    consumer = ours(loaded("from dedup_sdk import DedupConsumer, Lookup, RocksStore"))
    assert {name for name in consumer if name.startswith(OPTIONAL)} == set()
    assert len(consumer) <= MOST_MODULES_OF_A_CONSUMER


@pytest.mark.parametrize("package", PUBLIC)
def test_the_package_lists_its_names_before_they_are_loaded(package: str) -> None:
    """`dir()` has every public name, `import *` gives them, and a name that is none raises `AttributeError`."""
    module = import_module(package)
    assert set(PUBLIC[package]) <= set(dir(module))
    everything: dict[str, object] = {}
    exec(f"from {package} import *", everything)  # noqa: S102 - it is under test
    assert set(PUBLIC[package]) <= set(everything)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nonsense'"):
        getattr(module, "Nonsense")  # noqa: B009 - a type checker would refuse it


def test_public_classes_and_values_are_pickled() -> None:
    """A class is pickled by its module, a value by its class: both come back the same."""
    for package, name in NAMES:
        public = getattr(import_module(package), name)
        if inspect.isclass(public):
            assert pickle.loads(pickle.dumps(public)) is public  # noqa: S301 - our own
    strategy = dedup_sdk.Lookup(id="header:dedup-id", window=dedup_sdk.Window(days=7))
    assert pickle.loads(pickle.dumps(strategy)) == strategy  # noqa: S301 - our own


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_a_public_name_says_what_it_is(package: str, name: str) -> None:
    """Each exported class and function has a docstring of its own, and so have its public methods."""
    public = getattr(import_module(package), name)
    assert public.__doc__
    assert not public.__doc__.startswith(f"{name}("), "a dataclass without a docstring gets its signature"
    for member, value in vars(public).items() if inspect.isclass(public) else ():
        if inspect.isfunction(value) and not member.startswith("_"):
            assert value.__doc__, member


@pytest.mark.parametrize("name", modules())
def test_a_module_says_what_it_holds(name: str) -> None:
    """Each module has a docstring, and so has every public function, class and method that it defines."""
    module = import_module(name)
    assert module.__doc__
    for member, value in vars(module).items():
        if member.startswith("_") or getattr(value, "__module__", None) != name:
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, member
        for method, function in vars(value).items() if inspect.isclass(value) else ():
            if inspect.isfunction(function) and not method.startswith("_"):
                assert function.__doc__, f"{member}.{method}"


def test_walking_finds_the_modules() -> None:
    """The test above is about all of the code."""
    found = set(modules())
    assert {"dedup_sdk._decision", "dedup_sdk._store.rocks", "spark_backfill.job"} <= found
    assert isinstance(import_module("dedup_sdk"), ModuleType)


@pytest.mark.parametrize("name", ["Window", "Windows", "Lookup", "LastId", "Record", "Recovery", "Unit"])
def test_the_hints_of_a_value_can_be_resolved(name: str) -> None:
    """Tools that read dataclasses (validators, injectors) ask for them."""
    assert get_type_hints(getattr(dedup_sdk, name))


def test_the_hints_of_shared_can_be_resolved() -> None:
    """Likewise."""
    assert get_type_hints(Shared)


def test_the_version_is_that_of_the_package() -> None:
    """As the metadata of the installed package has it."""
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["version"]
    assert dedup_sdk.__version__ == declared
