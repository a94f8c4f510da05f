"""Whether two addresses with one cluster ID are of one cluster: a copied configuration gives the same ID to another one.

One cluster shows the same topics by all its addresses. So a topic that is known at one end only, or is another one there, tells two apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as TakesLongError
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk.kafka.metadata import topic_id_of
from dedup_sdk.kafka.questions import Questions

_ASK_S: Final = 5.0
_PAUSE_S: Final = 0.5
"""Seconds between two looks: a broker may not have heard of a topic yet, so that both have to agree."""
_NONE: Final = "-"
_Seen = dict[str, tuple[str, str]]


def topic_that_tells_apart(
    source: Mapping[str, Any], target: Mapping[str, Any], topics: Iterable[str]
) -> str | None:
    """Return a topic by which two clusters are told apart that have one ID; None where they seem to be one.

    Args:
        source: configuration of a client of one of them.
        target: of the other one.
        topics: names to ask for.
    """
    ends = (Questions(source), Questions(target))
    names = sorted(set(topics))
    found = _differing(ends, names)
    if not found:
        return None
    time.sleep(_PAUSE_S)
    again = _differing(ends, list(found))
    return next((name for name, seen in found.items() if again.get(name) == seen), None)


def _differing(ends: tuple[Questions, Questions], names: list[str]) -> _Seen:
    one, other = (_ids(each, names) for each in ends)
    return {
        name: (one[name], other[name])
        for name in names
        # Brokers without topic IDs tell nothing.
        if one.get(name) and other.get(name) and one[name] != other[name]
    }


def _ids(end: Questions, names: list[str]) -> dict[str, str]:
    """Return the topics' IDs, "" where brokers have none, and a dash for a topic that is not there; nothing of what cannot be said."""
    found: dict[str, str] = {}
    for name, asked in end.describe(names).items():
        try:
            found[name] = topic_id_of(asked.answer.result(_ASK_S))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                found[name] = _NONE
        except TakesLongError:
            pass
    return found
