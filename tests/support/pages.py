"""The documentation's pages: their places, their examples, and a stage on which their examples run."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import re
import shlex
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from dedup_sdk import DedupConsumer, DedupError, Lookup, Window, header
from tests.support.producing import produce, with_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message
    from sybil import Example

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]

ADDRESS = "localhost:9092"
"""The broker of every example; on the stage it is another."""

REGISTRY = "http://localhost:8081"
"""The schema registry of every example; on the stage it is one inside the process."""

PORTS = {
    '("", 8080)': '("127.0.0.1", 0)',
    "start_http_server(8000)": 'start_http_server(0, "127.0.0.1")',
    "serve(consumer, port=8080)": "serve(consumer, port=0)",
}
"""Where examples listen; on the stage it is any free port."""

SENT = ["order-1", "order-2", "order-1", "order-3", "order-2", "last"]
"""The messages in the topic "orders" when an example begins."""

OUTPUT = re.compile(r"(?:```)?\n+```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""What follows a block of Python, if the page shows its output."""
_FENCED_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED_COMMAND = re.compile(r"^    ((?:make|\.venv/bin/python|dedup) .*)$", re.MULTILINE)
_FILE_BLOCK = re.compile(r"# (\S+\.py)\n")


def page_id(page: Path) -> str:
    """The page's path inside the repository."""
    return page.relative_to(ROOT).as_posix()


def site_module(name: str) -> Any:
    """Load a module of docs/site, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def shell_commands(page: Path) -> Iterator[list[str]]:
    """Yield the commands that a page tells its reader to type, split as a shell does."""
    text = page.read_text(encoding="utf-8")
    blocks = _FENCED_SHELL.findall(text) if page.parent.name != "benchmarks" else []
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines() + _INDENTED_COMMAND.findall(text)
    for line in lines:
        words = shlex.split(line, comments=True)
        if words:
            yield words


def _evaluate(example: Example) -> None:
    """Run an example; where the page shows its output, an error of the package is a part of it."""
    shown = OUTPUT.match(example.document.text, example.end)
    if shown is None:
        example.evaluate()
        return
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            example.evaluate()
        except DedupError as error:
            said.write("".join(traceback.format_exception_only(error)))
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(shown[1], said.getvalue(), flags), said.getvalue()


class Stage:
    """The surroundings that an example expects: a broker with orders, a consumer, and a handler called ``charge``.

    An example that uses ``consumer`` without making one gets a new consumer of a group of its own. ``charge``
    stops it at the topic's last record, because the loops of the pages are those of services, which never end.
    """

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._groups = 0
        self._fail_next = ""
        self.handled: list[str] = []
        self.namespace: dict[str, Any] = {}
        produce(bootstrap, "orders", with_ids(*SENT))

    def examples(self, page: Path) -> list[Example]:
        """Return the examples of a page, in order, as they stand but for the addresses of broker and registry."""
        copy = self._folder / page.name
        text = page.read_text(encoding="utf-8").replace(ADDRESS, self._bootstrap)
        text = text.replace(REGISTRY, "mock://")
        for port, any_port in PORTS.items():
            text = text.replace(port, any_port)
        copy.write_text(text, encoding="utf-8")
        document = Sybil(
            [PythonCodeBlockParser()],
            path=str(self._folder),
        ).parse(copy)
        document.namespace["charge"] = self.charge
        self.namespace = document.namespace
        return list(document.examples())

    def run(self, example: Example) -> None:
        """Run an example. One that begins with ``# folder/file.py`` is that file.

        A block of text right below it is its output, which must be this.
        """
        source = str(example.parsed)
        if file := _FILE_BLOCK.match(source):
            place = self._folder / file[1]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(source, encoding="utf-8")
            return
        self.handled = []
        self._fail_next = "order-2" if "ConnectionError" in source else ""
        if "consumer" not in source or re.search(r"consumer = |as consumer", source):
            _evaluate(example)
            return
        with self._consumer() as consumer:
            consumer.subscribe(["orders"])
            self.namespace["consumer"] = consumer
            _evaluate(example)

    def charge(self, message: Message) -> None:
        """Handle a message."""
        order = (message.value() or b"").decode()
        if order == self._fail_next:
            self._fail_next = ""
            raise ConnectionError(f"{order}: the bank does not answer")
        self.handled.append(order)
        if order == SENT[-1]:
            self.namespace["consumer"].stop()
            if callable(signal.getsignal(signal.SIGTERM)):
                # Of `stop_on_signals`: loops over poll() and consume() do not hear of stop().
                signal.raise_signal(signal.SIGTERM)

    def _consumer(self) -> DedupConsumer:
        self._groups += 1
        return DedupConsumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"reader-{self._groups}",
                "auto.offset.reset": "earliest",
            },
            dedup=Lookup(id=header("dedup-id"), window=Window(days=7)),
            store="var/dedup",
        )
