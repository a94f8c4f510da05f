"""A report as files: ``report.html``, a PNG for each figure, and ``findings.json``.

The page needs no other file and no network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dedup_sdk._masking import shown
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.findings import adviser
from spark_backfill.findings.findings import MOST_PRODUCERS, OTHER_PRODUCERS
from spark_backfill.findings.time_series import LAST_MS
from spark_backfill.report_page import wording
from spark_backfill.report_page.document import FINDINGS_NAME, Document

PAGE_NAME: Final = "report.html"
NEEDED: Final = ("jinja2", "matplotlib")
_FILTERS: Final = ("length", "moment", "number", "plural", "share", "size_text")


def check_place(folder: Path) -> None:
    """See to it that a report can be made, before anything else takes long: the libraries, and a folder to write to.

    Raises:
        BackfillError: the extra ``[report]`` is not installed, or the folder cannot be written.
    """
    for name in NEEDED:
        if find_spec(name) is None:
            raise BackfillError(
                f"a report needs {name}, which is not installed: pip install 'dedup-sdk[report]'"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        raise BackfillError(
            f"report {shown(folder)} cannot be a folder to write to: {error}; choose another"
        ) from None


def write_page(document: Document, folder: Path) -> Path:
    """Write all files of the report and return the page's path; files of the same names are replaced.

    Raises:
        BackfillError: as `check_place`; or the folder is full, or the numbers cannot be drawn.
    """
    check_place(folder)
    from spark_backfill.report_page import plots

    window_ms = _window_ms(document)
    try:
        (folder / FINDINGS_NAME).write_text(f"{document}\n", encoding="ascii")
        advice = adviser.advise(document.findings, window_ms)
        figures = plots.draw(document.findings, advice, window_ms, folder)
        (folder / PAGE_NAME).write_text(_html(document, advice, figures), encoding="utf-8")
    except OSError as error:
        raise BackfillError(
            f"report {shown(folder)} cannot be written: {error.strerror}; choose another folder"
        ) from None
    except Exception as error:
        raise BackfillError(
            f"the report cannot be drawn ({one_line(error)}); its numbers are in {folder / FINDINGS_NAME}"
        ) from error
    return folder / PAGE_NAME


def _html(document: Document, advice: adviser.Advice, figures: Mapping[str, str]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("spark_backfill.report_page", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(wording, name) for name in _FILTERS}
    context: dict[str, Any] = {
        "facts": document.facts,
        "findings": document.findings,
        "producer_header": document.producer_header,
        "advice": advice,
        "adviser": adviser,
        "window_of": lambda length_ms: Window(milliseconds=length_ms),
        "has_others": OTHER_PRODUCERS in document.findings.producers,
        "most_producers": MOST_PRODUCERS,
        "last_ms": LAST_MS,
        # Made by Matplotlib, which has escaped the texts in them.
        "figures": {name: Markup(svg) for name, svg in figures.items()},  # noqa: S704
        "version": _version(),
    }
    return environment.get_template("page.html.jinja").render(context)


def _window_ms(document: Document) -> int | None:
    try:
        return Window.parse(str(document.facts.get("window"))).time_ms
    except ConfigurationError:
        return None


def _version() -> str:
    try:
        return version("dedup-sdk")
    except PackageNotFoundError:
        return "unknown"
