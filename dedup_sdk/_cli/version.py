"""The line of ``dedup --version``: this package, and the libraries that read Kafka, keep the store and rebuild it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import confluent_kafka

_LIBRARIES: Final = ("confluent-kafka", "rocksdict", "pyspark")


def version_line() -> str:
    """Return the versions in one line; a library that is not installed is left out."""
    named = [f"Python {platform.python_version()}", f"librdkafka {confluent_kafka.libversion()[0]}"]
    for name in _LIBRARIES:
        try:
            named.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"dedup {version('dedup-sdk')} ({', '.join(named)})"
