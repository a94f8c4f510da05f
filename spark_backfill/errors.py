"""The job's message when it fails: one line, also where the failure came out of the JVM or a Python worker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from urllib.parse import unquote

from dedup_sdk._masking import masked_text, masked_urls, shown, without_secrets
from dedup_sdk.errors import ConfigurationError, DedupError
from spark_backfill.client_config import secrets_of
from spark_backfill.ending import EndedError, ended_by

_LONGEST = 500
_DEEPEST = 20
_CLASS = re.compile(r"^(?:[\w$]+\.)+(\w+(?:Exception|Error)\w*)(?::\s*|$)")
_FILE = re.compile(r"Encountered error while reading file (\S+?)\.?\s")
_SHOWN_CHARS = 60


IN_FULL: Final = "rebuild in full: once without --base, or with --overwrite in place of --add"
"""The remedy where a run cannot add to an earlier snapshot."""


def _short(value: str) -> str:
    """A value of the archive's, quoted, its beginning only where it is long."""
    said = masked_text(value)
    return shown(said if len(said) <= _SHOWN_CHARS else f"{said[:_SHOWN_CHARS]}...")


_NO_DRIVER = (
    "Spark has no driver for {scheme}:// URLs: name it with --packages; for a bucket of S3 give s3a:// and --packages "
    "org.apache.hadoop:hadoop-aws:<the version of Spark's Hadoop>"
)
_REMEDIES: Final = {
    r"(?i:Illegal Parquet type: INT64 \(TIMESTAMP\(NANOS)": (
        "Spark reads no Parquet timestamps of nanoseconds as such: give --columns timestamp=COLUMN:ns, "
        "and in $DEDUP_SPARK_ARGS --conf spark.sql.legacy.parquet.nanosAsLong=true"
    ),
    r"ClassNotFoundException: (?P<format>[\w.-]+)\.DefaultSource": (
        "Spark has nothing that reads --format {format}: is that how Spark calls it? Name what reads "
        "it with --packages, for delta io.delta:delta-spark_2.13:<the version for this Spark>"
    ),
    r'No FileSystem for scheme "(?P<scheme>\w+)"': _NO_DRIVER,
    r"ClassNotFoundException: Class org\.apache\.hadoop\.fs\.(?P<scheme>\w+)\.\w+ not found": _NO_DRIVER,
    r"\[CONVERSION_INVALID_INPUT\] The value '(?P<value>.*?)' \('(?P<form>\w+)'\)": (
        "the archive has the value {value}, which is no {form}: check what --columns says of keys, values and headers "
        "(:utf8, :base64, :hex), and that all of --source is written alike"
    ),
    r"\[CAST_INVALID_INPUT\] The value '(?P<value>.*?)' of the type \"\w+\" cannot be cast to \"(?P<type>\w+)\"": (
        "the archive has the value {value}, which cannot be read as {type}: check --columns (of texts, "
        "timestamp=COLUMN:iso reads ISO 8601), and that all of --source is written alike"
    ),
    r"\[CANNOT_PARSE_JSON_FIELD\] Cannot parse the field name (?P<field>\S+) and the value (?P<value>.*?) of the JSON "
    r"token .* \"(?P<type>\w+)\"": (
        "the archive has a line whose field {field} is {value}, which cannot be read as {type}: check --columns, and "
        "that all of --source are lines of such records"
    ),
    r"JsonEOFException: .*close marker for Array .*line: 1, column: 1\]": (
        "the archive has a JSON list of records, not one record a line: give --read-option multiLine=true"
    ),
    r"(?i:native (?P<form>\w+) library not available)": (
        "the archive is compressed as {form}, which this Spark cannot read: unpack the files, or have them written "
        "with gzip"
    ),
    r"OutOfMemoryError": (
        "Java has too little memory: give more by $DEDUP_SPARK_ARGS, e.g. --driver-memory 4g; if the archive's files "
        "end with .snappy, unpack them, because Spark reads only those that Hadoop wrote"
    ),
    r"JsonParseException: (?P<said>[^\n]+)": (
        "the archive has a text that is not the JSON which is read there ({said}): check --columns and --format"
    ),
    r"\[MALFORMED_RECORD_IN_PARSING": (
        "the archive has a text that is not the JSON which is read there: check --columns and --format"
    ),
    r"\[TABLE_OR_VIEW_NOT_FOUND\] The table or view (?P<table>.*?) cannot be found": (
        "Spark's catalog has no table {table}: check --source table:NAME, and that "
        "$DEDUP_SPARK_ARGS names the catalog that has it (--conf spark.sql.catalog....)"
    ),
    r"\[USER_RAISED_EXCEPTION\] (?P<said>a file of .*?)(?: SQLSTATE|$)": "{said}",
    r"\[UNABLE_TO_INFER_SCHEMA\]": (
        "the archive has no file in the folder itself, nor in folders of columns (NAME=VALUE): check --source and "
        "--format, or give --read-option recursiveFileLookup=true"
    ),
    r"\[PATH_NOT_FOUND\] Path does not exist: (?P<path>.*?)\.(?: SQLSTATE|$)": "{path} does not exist: check --source",
}
"""Patterns in the texts of Spark, and the remedy for each."""
_SHOWN: Final[Mapping[str, Callable[[str], str]]] = {"value": _short, "form": str.lower}
"""How parts of Spark's text are shown; the others are masked where they look like credentials."""


class BackfillError(DedupError):
    """A snapshot could not be made."""


def as_told(error: BaseException, secrets: Iterable[str]) -> EndedError | ConfigurationError | BackfillError:
    """Return the error to show to a user where a run failed with this one, in one line without these secrets."""
    if (ended := ended_by(error)) is not None:
        return ended
    if not isinstance(error, Exception):
        return BackfillError(
            f"a function that reads IDs raised {type(error).__name__}: it must raise an Exception"
        )
    failed = ConfigurationError if isinstance(error, ConfigurationError) else BackfillError
    return failed(one_line(error, secrets))


def one_line(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return the innermost cause of an error as one line of at most 500 characters, without these secrets.

    Of an exception that a Python worker raised this is that exception, of one of the JVM the message of its root
    cause. Texts that look like credentials are masked where the text is not ours, in our own those in URLs.
    """
    # Before anything is cut: a part of a secret is not recognised.
    text = without_secrets(_root(error), secrets)
    if isinstance(error, DedupError):
        return _flat(masked_urls(text))
    if (known := _known_cause(text)) is not None:
        return _flat(f"{known}{_file(error, secrets)}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any("Traceback (most recent call last)" in line for line in lines):
        lines = _last_of_traceback(lines)
    if not lines:
        return type(error).__name__
    # A worker's own error is a whole sentence.
    told = _CLASS.sub(r"\1: ", lines[0]).removeprefix(f"{BackfillError.__name__}: ")
    return _flat(f"{masked_text(told.removesuffix(': '))}{_file(error, secrets)}")


def unreadable(place: str, options: Mapping[str, str], error: Exception) -> BackfillError:
    """Return the error for a place that Spark cannot open; ``options`` are those of its reader."""
    secrets = secrets_of(options)
    known = _known_cause(without_secrets(_root(error), secrets))
    if known is not None:
        return BackfillError(known)
    given = "".join(f", --read-option {name}" for name in options)
    return BackfillError(
        f"archive {shown(place)} cannot be opened: Spark said {shown(one_line(error, secrets))}; check --source, "
        f"--format{given}"
    )


def _known_cause(text: str) -> str | None:
    """The remedy for a failure of Spark's whose cause is known, by its text; None for any other."""
    for pattern, remedy in _REMEDIES.items():
        if found := re.search(pattern, text, re.DOTALL):
            said = {name: _SHOWN.get(name, masked_text)(each) for name, each in found.groupdict().items()}
            return remedy.format(**said)
    return None


def _root(error: BaseException) -> str:
    """The text of the innermost exception that has one, of Python or of Java behind it."""
    texts = _texts(error)
    if not texts:
        return str(error) or type(error).__name__
    return next((text for text in reversed(texts) if _CLASS.sub("", text)), texts[0])


def _texts(error: BaseException) -> list[str]:
    """The texts of Java's exceptions behind this one, the innermost last."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    texts: list[str] = []
    while java is not None and len(texts) <= _DEEPEST:
        texts.append(str(java.toString()))
        java = java.getCause()
    return texts


def _file(error: BaseException, secrets: Iterable[str]) -> str:
    """The words that name the file which was read, if Spark says which one."""
    for text in _texts(error):
        if found := _FILE.search(without_secrets(text, secrets)):
            return f" (in {masked_urls(unquote(found[1]))})"
    return ""


def _last_of_traceback(lines: list[str]) -> list[str]:
    """The line of a worker's traceback that names the exception; Spark may add Java's frames and a state behind it."""
    python = [line for line in lines if not line.startswith(("at ", "SQLSTATE: "))]
    return python[-1:]


def _flat(text: str) -> str:
    flat = "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 3]}..."
