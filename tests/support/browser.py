"""A headless Chromium to look at pages with.

``DEDUP_TEST_CHROMIUM`` and ``DEDUP_TEST_CHROMEDRIVER`` name the programs where they are not on the PATH.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_DRIVERS = ("chromedriver", "chromium.chromedriver")


class NoBrowserError(Exception):
    """No Chromium, or no driver for it; the text names the package to install."""


class Browser:
    """One page at a time, seen as on a screen of some width, in light or dark."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        self._log: Callable[[str], list[dict[str, object]]] = driver.get_log

    def open(self, page: Path | str, *, width: int, dark: bool = False) -> None:
        """Show a file, or a page by its address."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._resize(width, 900)
        self.driver.get(page if isinstance(page, str) else page.as_uri())
        # All of it, so that a screenshot shows all of it.
        self._resize(width, int(self.run("return document.documentElement.scrollHeight")))

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the result of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def said(self) -> list[str]:
        """The console's entries since the last time: errors, warnings, and others."""
        return [str(entry["message"]) for entry in self._log("browser")]

    def _resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium, and end it. Raises `NoBrowserError` where there is none."""
    chromium = _program("DEDUP_TEST_CHROMIUM", _BROWSERS)
    chromedriver = _program("DEDUP_TEST_CHROMEDRIVER", _DRIVERS)
    options = ChromeOptions()
    options.binary_location = chromium
    # A container has no user namespaces for the sandbox, and little shared memory.
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(chromedriver))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def _program(variable: str, names: tuple[str, ...]) -> str:
    chosen = os.environ.get(variable)
    found = chosen or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise NoBrowserError(
            f"no {names[0]} on the PATH: install it (Debian: apt-get install chromium chromium-driver), or "
            f"name it in {variable}"
        )
    return found
