from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from django.conf import settings
from django.core.management import call_command
from kombu.exceptions import OperationalError

from dedup_sdk.testing import MockKafka
from tests.support.pages import ROOT, SENT, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from confluent_kafka import Message

PAGE = ROOT / "docs" / "frameworks.md"
ONCE = sorted(set(SENT))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A stage whose loops are ended by the framework, not by the handler."""
    # Where another handler is, a loop does not listen, and the SIGTERM of a test would end all of them.
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "an earlier test has taken SIGTERM"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with MockKafka() as kafka:
        kafka.create_topic("orders")
        yield Stage(kafka.bootstrap, tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def _terminate() -> None:
    """Send SIGTERM; a loop that does not listen fails its test, and does not end all of them."""
    assert callable(signal.getsignal(signal.SIGTERM))
    os.kill(os.getpid(), signal.SIGTERM)


def test_fastapi_handles_each_message_once_and_ends_in_order(stage: Stage) -> None:
    """The lifespan of the page starts the run; its end completes and closes; the probes see both."""
    example = stage.examples(PAGE)[0]
    handled: list[str] = []
    stage.namespace["charge"] = lambda message: handled.append(message.value().decode())
    example.evaluate()
    app = stage.namespace["app"]

    async def ask(page: str) -> tuple[int, str]:
        sent: list[dict[str, Any]] = []

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)

        scope = {"type": "http", "method": "GET", "path": f"/dedup/{page}", "root_path": "", "headers": []}
        await app(scope, None, send)
        return sent[0]["status"], b"".join(each["body"] for each in sent[1:]).decode()

    async def serve() -> list[tuple[int, str]]:
        async with app.router.lifespan_context(app):
            first = [await ask("livez"), await ask("readyz")]
            async with asyncio.timeout(30):
                while len(handled) < len(ONCE) or (await ask("readyz"))[0] != 200:  # noqa: ASYNC110 (as a probe does)
                    await asyncio.sleep(0.01)
            then = [await ask(page) for page in ("livez", "readyz", "metrics", "")]
        return [*first, *then, await ask("livez"), await ask("readyz")]

    first_live, first_ready, live, ready, metrics, page, after_live, after_ready = asyncio.run(serve())
    assert sorted(handled) == ONCE
    assert (first_live[0], first_ready[0]) == (200, 503)
    assert live == ready == (200, "ok\n")
    assert (
        'dedup_records_total{group="web",topic="orders",partition="0",verdict="fresh",reason=""}'
        in metrics[1]
    )
    assert (page[0], "orders" in page[1]) == (200, True)
    assert (after_live[0], after_ready[0]) == (503, 503)


def test_faststream_handles_each_message_once(stage: Stage) -> None:
    """The broker of the page, which starts and stops as an application does it."""
    handled: list[str] = []
    source = str(stage.examples(PAGE)[1].parsed)
    # The mock cluster cannot make topics.
    program = re.sub(r"(KafkaBroker\([^)]*)", r'\1, config={"allow.auto.create.topics": False}', source)
    stage.namespace["print"] = lambda _, order: handled.append(order)
    exec(compile(program, PAGE.name, "exec"), stage.namespace)  # noqa: S102

    async def serve() -> None:
        broker = stage.namespace["broker"]
        await broker.start()
        try:
            async with asyncio.timeout(30):
                while len(handled) < len(ONCE):  # noqa: ASYNC110 (the handler of the page sets no event)
                    await asyncio.sleep(0.01)
        finally:
            await broker.stop()

    asyncio.run(serve())
    assert sorted(handled) == ONCE


def test_the_command_of_django_handles_each_message_once_until_sigterm(stage: Stage, tmp_path: Path) -> None:
    """The command of the page runs by its name, and ends when SIGTERM comes."""
    stage.run(stage.examples(PAGE)[2])
    (tmp_path / "shop" / "billing.py").write_text(
        "import os, signal\n"
        "handled = []\n"
        "def charge(message):\n"
        "    handled.append(message.value().decode())\n"
        f"    if handled[-1] == {SENT[-1]!r}:\n"
        "        assert callable(signal.getsignal(signal.SIGTERM))\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n",
        encoding="utf-8",
    )
    if not settings.configured:
        import django

        settings.configure(INSTALLED_APPS=["shop"], DATABASES={})
        django.setup()
    call_command("charge_orders")
    assert sorted(sys.modules["shop.billing"].handled) == ONCE


def test_the_loops_of_the_page_on_asyncio_handle_each_message_once_until_sigterm(stage: Stage) -> None:
    """`run`, and one message at a time."""
    examples = stage.examples(ROOT / "docs" / "asyncio.md")
    for example in examples:
        handled: list[str] = []

        def charge(message: Message, handled: list[str] = handled) -> None:
            handled.append((message.value() or b"").decode())
            if len(handled) == len(ONCE):
                _terminate()

        stage.namespace["charge"] = charge
        example.evaluate()
        assert sorted(handled) == ONCE
    assert len(examples) == 2


def test_celery_gets_one_task_for_each_message(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each logical message becomes one task.

    One that Celery's broker does not accept is not completed: it comes again.
    """
    example = stage.examples(PAGE)[3]
    source = str(example.parsed).replace("amqp://localhost", "memory://")
    # The mock cluster lets the second consumer wait for the session timeout.
    quick = '"group.id": "celery", "session.timeout.ms": 2000, "heartbeat.interval.ms": 100'
    program = compile(source.replace('"group.id": "celery"', quick), PAGE.name, "exec")
    accepted: list[str] = []
    send_task = Celery.send_task

    def send(app: Celery, name: str, args: tuple[str], *, task_id: str) -> None:
        if task_id == "charge-order-2" and not broken.is_set():
            broken.set()
            raise OperationalError("the broker is away")
        send_task(app, name, args, task_id=task_id)
        accepted.append(task_id)
        if task_id == f"charge-{SENT[-1]}":
            _terminate()

    broken = threading.Event()
    monkeypatch.setattr(Celery, "send_task", send)
    with pytest.raises(OperationalError):
        exec(program, stage.namespace)  # noqa: S102
    assert accepted == ["charge-order-1"]
    exec(program, stage.namespace)  # noqa: S102
    assert accepted == ["charge-order-1", "charge-order-2", "charge-order-3", "charge-last"]
    assert stage.namespace["tasks"].control.purge() == len(accepted)
