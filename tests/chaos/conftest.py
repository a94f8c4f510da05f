from __future__ import annotations

from collections.abc import Iterator

import pytest

from dedup_sdk.errors import DedupError
from tests.chaos.bed import Bed
from tests.support.strictness import nothing_may_be_skipped


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    """One broker with its proxies for all scenarios; each has a topic, a group and workers of its own."""
    cluster = Bed(seed=1)
    try:
        cluster.__enter__()
    except DedupError as error:
        if nothing_may_be_skipped():
            raise
        pytest.skip(f"no Kafka: {error}")
    try:
        yield cluster
    finally:
        cluster.__exit__()
