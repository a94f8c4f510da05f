"""Fixtures for all tests. Whatever a run needs beyond the environment in .venv is started here, once, and named.

Switches (environment):
    DEDUP_TEST_BOOTSTRAP    use the broker at this address
    DEDUP_TEST_KAFKA_IMAGE  the image for a broker in a container, instead of apache/kafka:4.1.1
    DEDUP_TEST_POSTGRES_IMAGE  the image for PostgreSQL, instead of postgres:15
    DEDUP_TEST_REQUIRE=1    nothing may be skipped, and the broker has to be a container
    DEDUP_TEST_FAILURES     the folder to hand failed tests over to (``tests.support.repeating`` sets it, and
                            repeats them alone)
    DEDUP_TEST_SEED=7       the first seed of random tests, which is drawn by chance without it; the top of a run, and
                            each failure, tell it
    DEDUP_TEST_SEEDS=20     how many seeds each random test plays, instead of one
    DEDUP_TEST_TURN=7       a third of the broken variants that take turns (`tests.support.turns`), the next number the
                            next; without it all of them; the end of a run tells which (`make ci`: the day of the year)
    DEDUP_TEST_RANDOM=1     property tests draw other examples each time; without it a run can be repeated as it was

A test that fails now and then has an error in its premise or in the code, and both have been found so. `make test`
runs no test a second time. `make ci` and `.ci/run` repeat what failed, alone and three times, when everything else has
ended: a test that passes then is listed as ``passed only when alone``, and is a finding. Property tests draw the same
examples in each run, so that a change is judged by its own doing; draw others for a night, or before a release. Waits
end far above the time that they take on a machine that stands still for a moment. `make test` runs the suite in parts
side by side, with one real broker for all of them; `make ci` adds every chaos scenario.
"""

from __future__ import annotations

import os
import re
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import hypothesis
import pytest

# Downloads belong to the clone also where the tests are not started by make.
os.environ.setdefault("DEDUP_CACHE", str(Path(__file__).parents[1] / ".cache" / "dedup"))

from tests.support.brokers import Broker, NoBrokerError, real_broker
from tests.support.fresh_seeds import FreshSeeds
from tests.support.kafka_container import engine_trouble
from tests.support.producing import Outgoing, produce
from tests.support.repeating import Failures
from tests.support.strictness import Strictness, nothing_may_be_skipped
from tests.support.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("random" if os.environ.get("DEDUP_TEST_RANDOM") == "1" else "same")

_BROKER = pytest.StashKey[str]()
_QUICK_JAVA = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the switch under which a skip is a failure; undo what a shell does to commands in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Commands that tests start and interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Strictness(), "strictness")
    seeds = FreshSeeds()
    config.pluginmanager.register(seeds, "fresh-seeds")
    config.pluginmanager.register(Failures(seeds.first), "failures")
    config.pluginmanager.register(Turns(), "turns")


def pytest_report_header() -> str:
    """Say at the top what this run demands."""
    demand = (
        "nothing may be skipped" if nothing_may_be_skipped() else "what has no broker or engine is skipped"
    )
    return f"dedup: {demand}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the markers that follow from the fixtures a test uses, so that none is forgotten."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        for name in ("broker", "spark"):
            if name in fixtures:
                item.add_marker(name)
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            # Several jobs wait for the machine; and an alarm inside a call of the JVM breaks the session for all
            # others.
            item.add_marker(pytest.mark.timeout(600))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a container engine where none answers; let whoever starts a Spark start it quickly."""
    if item.get_closest_marker("container") and (trouble := engine_trouble()):
        pytest.skip(trouble)
    if item.get_closest_marker("spark") and not item.config.stash.get(_QUICK_JAVA, False):
        item.config.stash[_QUICK_JAVA] = True
        # Not at the top: a run without Spark does without PySpark.
        from tests.support.quick_java import use_quick_java

        os.environ |= use_quick_java()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which broker the integration tests ran on, and why on that one."""
    if why := config.stash.get(_BROKER, None):
        terminalreporter.write_line(f"broker of this run: {why}")


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """One real Kafka for the whole run: a given address, a container, or the published jars, in this order."""
    try:
        with real_broker(container_required=nothing_may_be_skipped()) as found:
            pytestconfig.stash[_BROKER] = found.why
            yield found
    except NoBrokerError as error:
        pytestconfig.stash[_BROKER] = f"none: {error}"
        pytest.skip(f"no Kafka: {error}")


class MakeTopic(Protocol):
    """Creates topics that no other test uses."""

    def __call__(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Return the new topic's name."""


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs a pytest inside a test, in this process, without plugins of packages.

    ddtrace's plugin would take SIGTERM for itself: no later loop would listen, and its SIGTERM would end all tests.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester


@pytest.fixture
def make_topic(broker: Broker, request: pytest.FixtureRequest) -> MakeTopic:
    """Creates topics of this test's own: ``make_topic(partitions=2, config={...}) -> name``."""

    def make(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        return broker.create_topic(_fresh_name(request), partitions, config)

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A fresh topic of 4 partitions."""
    return make_topic(partitions=4)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """The name of a consumer group of this test's own."""
    return _fresh_name(request)


@pytest.fixture(name="produce")
def produce_fixture(broker: Broker) -> Callable[[str, Iterable[Outgoing]], int]:
    """Sends records to the run's broker: ``produce(topic, with_ids("a", "b")) -> number``, all of them delivered."""
    return lambda topic, records: produce(broker.bootstrap, topic, records)


def _fresh_name(request: pytest.FixtureRequest) -> str:
    """The test's name, as far as Kafka accepts it, with something unique behind."""
    readable = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:80]
    return f"{readable}-{uuid.uuid4().hex[:8]}"
