"""Fixtures of more than one file of integration tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.browser import Browser, NoBrowserError, browser

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for one file."""
    try:
        with browser() as found:
            yield found
    except NoBrowserError as error:
        pytest.skip(str(error))
