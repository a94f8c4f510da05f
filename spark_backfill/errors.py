"""The job's message when it fails: one line, also where the failure came out of the JVM or a Python worker."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dedup_sdk._kafka.error_text import masked_text, masked_urls
from dedup_sdk.errors import DedupError

_LONGEST = 500
_DEEPEST = 20
_CLASS = re.compile(r"^(?:[\w$]+\.)+(\w+(?:Exception|Error)\w*)(?::\s*|$)")
_NANOSECONDS = re.compile(r"Illegal Parquet type: INT64 \(TIMESTAMP\(NANOS", re.IGNORECASE)
_NO_FORMAT = re.compile(r"ClassNotFoundException: ([\w.-]+)\.DefaultSource")
_NO_FILES = (
    re.compile(r'No FileSystem for scheme "(\w+)"'),
    re.compile(r"ClassNotFoundException: Class org\.apache\.hadoop\.fs\.(\w+)\.\w+ not found"),
)
_NO_ENCODED = re.compile(r"\[CONVERSION_INVALID_INPUT\] The value '(.*?)' \('(\w+)'\)", re.DOTALL)
_NO_CAST = re.compile(
    r"\[CAST_INVALID_INPUT\] The value '(.*?)' of the type \"\w+\" cannot be cast to \"(\w+)\"", re.DOTALL
)
_NO_FIELD = re.compile(
    r"\[CANNOT_PARSE_JSON_FIELD\] Cannot parse the field name (\S+) and the value (.*?) of the JSON token .* \"(\w+)\"",
    re.DOTALL,
)
_NO_TABLE = re.compile(r"\[TABLE_OR_VIEW_NOT_FOUND\] The table or view (.*?) cannot be found")
_NO_PATH = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (.*?)\.(?: SQLSTATE|$)")
_SHOWN_CHARS = 60


IN_FULL: Final = "rebuild in full: once without --base, or with --overwrite in place of --add"
"""What to do where a run cannot add to an earlier snapshot."""


class BackfillError(DedupError):
    """A snapshot could not be made."""


def one_line(error: BaseException) -> str:
    """Return the innermost cause of an error as one line of at most 500 characters.

    Of an exception that a Python worker raised this is that exception, of one of the JVM the message of its root
    cause. Texts that look like credentials are masked where the text is not ours, in our own those in URLs.
    """
    if isinstance(error, DedupError):
        return _flat(masked_urls(str(error)))
    wanted = _help(_root(error))
    if wanted is not None:
        return wanted
    text = _root(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any("Traceback (most recent call last)" in line for line in lines):
        lines = _last_of_traceback(lines)
    if not lines:
        return type(error).__name__
    # A worker's own error is a whole sentence.
    return _flat(masked_text(_CLASS.sub(r"\1: ", lines[0]).removeprefix(f"{BackfillError.__name__}: ")))


def unreadable(place: str, options: Iterable[str], error: Exception) -> BackfillError:
    """Return the error for a place that Spark cannot open; ``options`` are the names of its reader's."""
    known = _help(_root(error))
    if known is not None:
        return BackfillError(known)
    given = "".join(f", --read-option {name}" for name in options)
    return BackfillError(
        f"archive {place!r} cannot be opened: Spark said {one_line(error)!r}; check --source, --format{given}"
    )


def _help(text: str) -> str | None:
    """The option to give where Spark lacks something, None where it does not say so."""
    if _NANOSECONDS.search(text):
        return (
            "Spark reads no Parquet timestamps of nanoseconds as such: give --columns timestamp=COLUMN:ns, "
            "and in $DEDUP_SPARK_ARGS --conf spark.sql.legacy.parquet.nanosAsLong=true"
        )
    if found := _NO_FORMAT.search(text):
        return (
            f"Spark has nothing that reads --format {found[1]}: is that how Spark calls it? Name what reads "
            "it with --packages, for delta io.delta:delta-spark_2.13:<the version for this Spark>"
        )
    for kind in _NO_FILES:
        if found := kind.search(text):
            return (
                f"Spark has no driver for {found[1]}:// URLs: name it with --packages; for a bucket of S3 "
                "give s3a:// and --packages org.apache.hadoop:hadoop-aws:<the version of Spark's Hadoop>"
            )
    return _help_with_archive(text)


def _help_with_archive(text: str) -> str | None:
    """The remedy where an archive is not as it was described, None where Spark does not say so."""
    if found := _NO_ENCODED.search(text):
        return (
            f"the archive has the value {_short(found[1])}, which is no {found[2].lower()}: check what "
            "--columns says of keys, values and headers (:utf8, :base64, :hex), and that all of --source is "
            "written alike"
        )
    if found := _NO_CAST.search(text):
        return (
            f"the archive has the value {_short(found[1])}, which cannot be read as {found[2]}: check "
            "--columns (of texts, timestamp=COLUMN:iso reads ISO 8601), and that all of --source is written "
            "alike"
        )
    if found := _NO_FIELD.search(text):
        return (
            f"the archive has a line whose field {found[1]} is {_short(found[2])}, which cannot be read as "
            f"{found[3]}: check --columns, and that all of --source are lines of such records"
        )
    if found := _NO_TABLE.search(text):
        return (
            f"Spark's catalog has no table {found[1]}: check --source table:NAME, and that "
            "$DEDUP_SPARK_ARGS names the catalog that has it (--conf spark.sql.catalog....)"
        )
    if found := _NO_PATH.search(text):
        return f"{masked_text(found[1])} does not exist: check --source"
    return None


def _short(value: str) -> str:
    """A value of the archive's, quoted, its beginning only where it is long."""
    shown = masked_text(value)
    return repr(shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}...")


def _root(error: BaseException) -> str:
    """The text of the innermost exception, of Python or of Java behind it."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return str(error) or type(error).__name__
    for _ in range(_DEEPEST):
        cause = java.getCause()
        if cause is None:
            break
        java = cause
    return str(java.toString())


def _last_of_traceback(lines: list[str]) -> list[str]:
    """The line of a worker's traceback that names the exception; Spark may add Java's frames and a state behind it."""
    python = [line for line in lines if not line.startswith(("at ", "SQLSTATE: "))]
    return python[-1:]


def _flat(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 3]}..."
