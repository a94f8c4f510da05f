"""A broker with the transactions of Kafka before 4.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup_sdk.testing import LocalKafka

if TYPE_CHECKING:
    from dedup_sdk.testing._supervised_child import SupervisedChild


class OlderKafka(LocalKafka):
    """A broker with ``transaction.version=0``.

    A producer's epoch stays the same from one transaction to the next, and the producer itself adds each partition to
    its transaction (before KIP-890).
    """

    def _spawn(self, main: str, *arguments: str) -> SupervisedChild:
        older = ("--feature", "transaction.version=0") if "format" in arguments else ()
        return super()._spawn(main, *arguments, *older)
