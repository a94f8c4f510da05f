"""Where the job's own lines go, and the silence of everything else.

``spark-submit`` joins a Python program's stderr to its stdout, and lets the JVM's log go to stderr. Here it is the other way
round: stdout has the report and nothing else, stderr our lines and no log.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

PREFIX: Final = "backfill: "
"""How every line of ours on stderr begins."""


class Console:
    """Writes lines to the stderr that the user sees; makes the JVM that runs this process, if one does, silent."""

    def __init__(self) -> None:
        self._stderr: Any = None
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            return
        from pyspark import SparkContext

        SparkContext._ensure_initialized()  # noqa: SLF001 (the gateway, before there is a context)
        jvm: Any = SparkContext._jvm  # noqa: SLF001 (as above)
        jvm.org.apache.spark.util.Utils.setLogLevel(jvm.org.apache.logging.log4j.Level.OFF)
        # Tracebacks of Python workers go here too; the last line of one is said by the job.
        self._stderr = jvm.java.lang.System.err
        jvm.java.lang.System.setErr(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))

    def say(self, line: str) -> None:
        """Write one line, with the prefix that marks it as ours."""
        if self._stderr is not None:
            self._stderr.println(f"{PREFIX}{line}")
        else:
            sys.stderr.write(f"{PREFIX}{line}\n")
            sys.stderr.flush()
