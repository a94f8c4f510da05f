from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

PRINTED = {
    "artemis_migration.py": """\
orders.eu remembers 3 IDs: the second A and the second C are duplicates
  order A (offset 0)
  order B (offset 1)
  order C (offset 3)
  duplicates: 2
a restart forgets nothing: A is found, D takes its slot, and A is new again
  order D (offset 6)
  order A (offset 7)
  duplicates: 1
audit remembers none: everything is delivered
  order A (offset 0)
  order A (offset 1)
  duplicates: 0
""",
    "billing.py": """\
charge order-1: 30 (offset 0)
charge order-2: 12 (offset 1)
charge order-3: 99 (offset 3)
6 records, 3 of them duplicates
""",
    "bridge.py": """\
3 copied, 2 of them given an ID
3 copied, 2 of them given an ID
handle order-1 (order-1)
handle order-2 (orders-0-1)
handle order-3 (orders-0-2)
duplicates: 3
""",
    "cmq_producer.py": """\
the first producer: 0 unconfirmed, 3 confirmed
the next one found 3 in the outbox, and sent 4
handle order-1 (10.0.0.5, number 1)
handle order-2 (10.0.0.5, number 2)
handle order-3 (10.0.0.5, number 3)
handle order-4 (10.0.0.5, number 1)
duplicates: 3
""",
    "exactly_once.py": """\
bill order-1 (offset 0)
bill order-2 (offset 1)
bill order-3 (offset 3)
bill order-4 (offset 7)
bills: order-1 order-2 order-3 order-4
""",
    "hornetq_transactions.py": """\
transaction 1 is handled; 2 has a duplicate of it in it, and is rejected with all that it has
  order A (offset 0)
  order B (offset 1)
  rejected: 2
of transaction 3 one half has come when the consumer ends: it waits for the other
  rejected: 0
and so does the next consumer; C was rejected before, not handled, so that it is new
  order C (offset 4)
  order D (offset 5)
  rejected: 0
""",
    "handlers.py": """\
charge order-1 (offset 0)
charge order-3 (offset 3)
2 retries, 1 dead letter
offset 1 was given up: order-2: the bank is closed
charge order-2 (offset 4)
""",
    "plain_records.py": """\
0 order-1: fresh
1 order-2: fresh
2 order-1: parked
0 order-1: handled
2 order-1: duplicate
1 order-2: its handler failed
1 order-2: fresh, attempt 2
1 order-2: handled
3 order-3: fresh
4 order-2: duplicate
3 order-3: handled
0 order-1: redelivered
1 order-2: redelivered
2 order-1: redelivered
done up to offset 5: {'fresh': 3, 'duplicate': 2, 'redelivered': 3}
""",
    "shared_redis.py": """\
berlin reads the web shop's orders, and is slow with the last one
  berlin ships order-1
paris reads those by phone: order-2 is in flight in berlin, and neither dropped nor shipped twice
  paris ships order-3
  berlin ships order-2
paris is told that it was completed, and its copy is a duplicate
""",
    "solace_database_lookup.py": """\
the queue delivers 1 and 2, then both again: the consumer's own store knows them, without a query
  order 1 is paid
  order 2 is paid
a crash between the database's commit and the consumer's: 3 comes again, and its ID is in the database
  order 3 is paid
  crash after the commit
  order 3 is in the database
a crash before the commit: nothing of 4 is in the database, so that it is done when it comes again
  order 4 is paid
  crash before the commit
  order 4 is paid
paid: order 1, order 2, order 3, order 4
""",
    "solace_last_id.py": """\
the connector lost an acknowledgement: the queue delivered 1 and 2 twice, and 3 came late
  order 1 (offset 0)
  order 2 (offset 1)
  order 4 (offset 4)
  order 3 (offset 5)
  duplicates: 2, uncomparable: 0
after a restart the last ID is still 4: what the queue delivers again is found
  order 5 (offset 8)
  duplicates: 2, uncomparable: 0
the mate counts by itself: its first ID is uncomparable, so that it is handled, and the next ones go on from there
  order 1 (offset 9)
  order 2 (offset 10)
  duplicates: 1, uncomparable: 1
""",
}


def told(stderr: str) -> list[str]:
    """The lines without those about a broker that was slow, as on a busy machine: the end came before its answer."""
    slow = ("; the request is repeated", "which deliver nothing meanwhile", "events from background queue")
    return [line for line in stderr.splitlines() if not any(each in line for each in slow)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRINTED))
def test_an_example_runs_and_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    """Each example runs by its file name, from any folder, needs nothing started, and prints exactly this."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert told(done.stderr) == []
    assert (done.returncode, done.stdout) == (0, PRINTED[name])
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_run() -> None:
    """No example is left out of the test above."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


def calls(path: Path) -> set[str]:
    """The names of the functions and methods that an example calls."""
    called = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return {
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in called
        if isinstance(each, ast.Attribute | ast.Name)
    }


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_that_consumes_ends_in_order(path: Path) -> None:
    """Users copy examples: by ``kill`` and Ctrl-C the consumer of each finishes its message, and leaves its group."""
    called = calls(path)
    assert "stop_on_signals" in called or "DedupConsumer" not in called


def test_some_examples_consume() -> None:
    """The test above is about them."""
    consuming = [path for path in EXAMPLES.glob("*.py") if "DedupConsumer" in calls(path)]
    assert len(consuming) > len(PRINTED) / 2


@pytest.mark.slow
def test_a_killed_example_ends_in_order(tmp_path: Path) -> None:
    """The one with two consumers and a server: SIGTERM after the first line."""
    with subprocess.Popen(
        [sys.executable, "-u", EXAMPLES / "shared_redis.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stdout.readline().startswith("berlin reads")
        program.send_signal(signal.SIGTERM)
        _, said = program.communicate(timeout=60)
        assert (program.returncode, told(said)) == (0, [])
