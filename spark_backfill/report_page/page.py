"""A report as files: ``report.html``, a PNG for each figure, and ``findings.json``.

The page needs no other file and no network.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Final

from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError
from spark_backfill.errors import BackfillError
from spark_backfill.findings.adviser import STORE_BYTES_PER_ID, SURE_DUPLICATES, TARGET, Advice, advise
from spark_backfill.report_page import wording
from spark_backfill.report_page.document import FINDINGS_NAME, Document

PAGE_NAME: Final = "report.html"
MOST_PARTITIONS: Final = 64
"""So many partitions, those with the most duplicates, have a row each."""
MOST_PRODUCERS: Final = 50

NEEDED: Final = ("jinja2", "matplotlib")
_EXAMPLES: Final = 10


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
    if "\0" in str(folder):
        raise BackfillError(f"report {str(folder)!r} cannot be a folder: leave the NUL character out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BackfillError(
            f"report {str(folder)!r} cannot be a folder: {error.strerror}; choose another"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BackfillError(f"report {str(folder)!r} cannot be written; choose another folder, or its owner")


def write_page(document: Document, folder: Path) -> Path:
    """Write all files of the report and return the page's path; files of the same names are replaced.

    Raises:
        BackfillError: as `check_place`; or the folder is full.
    """
    check_place(folder)
    from matplotlib import rc_context

    from spark_backfill.report_page.figure import STYLE, to_png, to_svg
    from spark_backfill.report_page.plots import plots

    window = _window(document)
    advice = advise(document.findings, window)
    try:
        (folder / FINDINGS_NAME).write_text(f"{document}\n", encoding="ascii")
        figures = dict[str, str]()
        with rc_context(STYLE):
            for name, drawn in plots(document.findings, advice, window):
                figures[name] = to_svg(drawn, name)
                to_png(drawn, folder / f"{name}.png")
        (folder / PAGE_NAME).write_text(_html(document, advice, window, figures), encoding="utf-8")
    except OSError as error:
        raise BackfillError(
            f"report {str(folder)!r} cannot be written: {error.strerror}; choose another folder"
        ) from None
    return folder / PAGE_NAME


def _html(document: Document, advice: Advice, window: Window | None, figures: dict[str, str]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("spark_backfill.report_page", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        name: getattr(wording, name)
        for name in ("length", "moment", "number", "plural", "share", "size_text")
    }
    findings, sample = document.findings, document.findings.sample
    # Made above, of numbers and of texts that Matplotlib has escaped.
    drawn = {name: Markup(svg) for name, svg in figures.items()}  # noqa: S704
    return environment.get_template("page.html.jinja").render(
        facts=document.facts,
        findings=findings,
        advice=advice,
        figures=drawn,
        target=TARGET,
        sure_duplicates=SURE_DUPLICATES,
        store_bytes_per_id=STORE_BYTES_PER_ID,
        version=_version(),
        window=window,
        keyed=findings.records - findings.unkeyed,
        partitions=findings.worst_partitions(MOST_PARTITIONS),
        partitions_left_out=max(len(findings.partitions) - MOST_PARTITIONS, 0),
        producer_header=document.producer_header,
        producers=findings.worst_producers(MOST_PRODUCERS),
        producers_left_out=max(len(findings.producers) - MOST_PRODUCERS, 0),
        several=sample.estimate(),
        sampled=len(sample.partitions),
        sampled_all=sample.end is None,
        several_examples=[
            (digest.hex(), sorted(where)) for digest, where in islice(sample.several().items(), _EXAMPLES)
        ],
    )


def _window(document: Document) -> Window | None:
    try:
        return Window.parse(str(document.facts.get("window", "")))
    except ConfigurationError:
        return None


def _version() -> str:
    try:
        return version("dedup-sdk")
    except PackageNotFoundError:
        return "unknown"
