"""The answers of the health pages, whoever serves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from dedup_adapters._consumer_totals import ConsumerTotals
from dedup_adapters._last_lines import last_lines
from dedup_adapters._looks import AnyConsumer, watched
from dedup_adapters._prometheus_text import MEDIA_TYPE, text_of
from dedup_adapters._screen import page
from dedup_sdk import Health
from dedup_sdk.errors import shown

_TEXT: Final = "text/plain; charset=utf-8"
_HTML: Final = "text/html; charset=utf-8"
_NEVER_KEPT: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer over HTTP, with its headers."""

    status: HTTPStatus
    body: bytes
    headers: tuple[tuple[str, str], ...]


def answer_of(status: HTTPStatus, text: str, kind: str = _TEXT, *more: tuple[str, str]) -> Answer:
    """Return an answer; a text of one line needs no end of line."""
    body = (text if text.endswith("\n") else f"{text}\n").encode("utf-8", "replace")
    headers = ("Content-Type", kind), ("Content-Length", str(len(body)))
    return Answer(status, body, (*headers, *_NEVER_KEPT, *more))


class Answers:
    """Answers requests about consumers, from any thread, without waiting for one of them.

    ``alive``: what else must be true for the process to be live.
    """

    def __init__(self, consumers: tuple[AnyConsumer, ...], alive: Callable[[], bool] | None = None) -> None:
        self._watched = watched(consumers)
        self._alive = alive
        self._totals = ConsumerTotals(consumers)
        self._lines = last_lines()
        self._pages = {
            "/": self._page,
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/metrics": self._metrics,
        }

    @property
    def is_over(self) -> bool:
        """Whether all consumers are closed or gone."""
        return all(each.health().closed for each in self._watched)

    def answer(self, method: str, path: str) -> Answer:
        """Return the answer to a request; it raises nothing. A body of HEAD is left out by the server."""
        page_of = self._pages.get(path or "/")
        if page_of is None:
            return answer_of(
                HTTPStatus.NOT_FOUND, f"no such page: ask for one of {', '.join(self._pages)}", _TEXT
            )
        if method not in {"GET", "HEAD"}:
            return answer_of(
                HTTPStatus.METHOD_NOT_ALLOWED, "ask by GET or HEAD", _TEXT, ("Allow", "GET, HEAD")
            )
        try:
            return page_of()
        except Exception as error:  # noqa: BLE001 (a probe gets an answer, whatever happens)
            return answer_of(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"the consumer cannot be looked at: {shown(error)}"
            )

    def health(self) -> Health:
        """Return the health of all consumers together."""
        each = [one.health() for one in self._watched]
        live, ready = all(one.live for one in each), all(one.ready for one in each)
        reasons = tuple(dict.fromkeys(reason for one in each for reason in one.reasons))
        if self._alive is not None and not self._alive():
            dead = "the program says that the consumer's thread has ended: look into its log, and restart the process"
            live, ready, reasons = False, False, (dead, *reasons)
        return Health(live=live, ready=ready, reasons=reasons)

    def _livez(self) -> Answer:
        health = self.health()
        return _probe(health.live, health)

    def _readyz(self) -> Answer:
        health = self.health()
        return _probe(health.ready, health)

    def _page(self) -> Answer:
        looks = [each.look() for each in self._watched]
        return answer_of(HTTPStatus.OK, page(looks, self.health(), self._lines.lines()), _HTML)

    def _metrics(self) -> Answer:
        return answer_of(HTTPStatus.OK, text_of(self._totals.totals()), MEDIA_TYPE)


def _probe(good: bool, health: Health) -> Answer:  # noqa: FBT001 (the answer itself)
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    return answer_of(status, "\n".join(health.reasons) or "ok")
