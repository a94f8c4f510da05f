"""Where the job's own lines go: stdout has the report and nothing else, stderr our lines among Spark's logs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from spark_backfill.ending import EndedError
from spark_backfill.progress import Progress

PREFIX: Final = "backfill: "
"""How every line of ours on stderr begins."""
ERROR: Final = "error: "
"""How the line of a run that fails goes on."""
LAUNCHED: Final = "DEDUP_BACKFILL_LAUNCHED"
"""Set in the environment of a job that `spark_backfill.launch` has started, to a folder of the launcher.

There the job leaves these two files, its process ID, and when it is ended, what has become of the snapshot.
"""
FOLDER: Final = "DEDUP_BACKFILL_FOLDER"
"""Set there, too: the folder of which the arguments name files."""
DRIVER_NAME: Final = "driver"
OUTCOME_NAME: Final = "outcome"
PROGRESS: Final = "progress: "
"""How a line goes on that the launcher takes out of the job's stderr."""
LINE_EVERY_S: Final = 30.0
"""How often a line of progress is written where nothing can be drawn, seconds."""


class Console:
    """Writes lines to the stderr that the user sees; ``launched``: `spark_backfill.launch` reads them."""

    def __init__(self) -> None:
        self._stderr: Any = None
        self.launched = LAUNCHED in os.environ
        self._now_and_then = NowAndThen(self.say)
        self._leave(DRIVER_NAME, str(os.getpid()))
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            return
        from pyspark import SparkContext

        # spark-submit joins a Python program's stderr to its stdout. PySpark has no public way to the stderr of the JVM
        # that it runs in, and none to a JVM before there is a session.
        SparkContext._ensure_initialized()  # noqa: SLF001
        jvm: Any = SparkContext._jvm  # noqa: SLF001
        self._stderr = jvm.java.lang.System.err

    def say(self, line: str) -> None:
        """Write one line, with the prefix that marks it as ours; nothing when nobody reads any more."""
        text = f"{PREFIX}{line}"
        if self._stderr is not None:
            try:
                self._stderr.println(text)
            except Exception:  # noqa: BLE001 (the JVM is gone; the line is for whoever is left)
                self._stderr = None
            else:
                return
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def end(self, ended: EndedError) -> None:
        """Say that the run was ended, to the launcher also where the JVM does not answer any more."""
        self._leave(OUTCOME_NAME, ended.outcome)
        self.say(str(ended))

    def progress(self, seen: Progress) -> None:
        """Tell how far the run is: all of it to the command that started the job, a line now and then to a person."""
        if self.launched:
            self.say(f"{PROGRESS}{seen.to_json()}")
        else:
            self._now_and_then(seen)

    def _leave(self, name: str, text: str) -> None:
        if self.launched:
            with suppress(OSError):
                (Path(os.environ[LAUNCHED]) / name).write_text(text, encoding="ascii")


class NowAndThen:
    """Makes a line of a progress every half a minute, the first when the run is that old; the clock is given."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._next = clock() + LINE_EVERY_S

    def __call__(self, seen: Progress) -> None:
        """Say it, when it is time."""
        if self._clock() >= self._next:
            self._next = self._clock() + LINE_EVERY_S
            self._say(str(seen))
