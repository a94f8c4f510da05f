"""Brokers and faults for tests: this package's own test helpers, for your tests, too.

| name | description | up in | needs |
|---|---|---|---|
| `LocalKafka` | a real Kafka broker (KRaft) as a child process | 5 s | Java, or the extra ``[testing]`` |
| `MockKafka` | librdkafka's mock cluster inside this process | 0.1 s | nothing |
| `CuttingProxy` | a TCP proxy that cuts connections after the broker has written a batch | at once | nothing |

    from dedup_sdk.testing import LocalKafka

    with LocalKafka() as kafka:
        kafka.create_topic("orders", partitions=4)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})

All of them listen on 127.0.0.1 only, and raise `dedup_sdk.errors.KafkaHelperError`, one line with the next step.
Each name is loaded when it is first used, so that importing this package loads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dedup_sdk.testing.cutting_proxy import CuttingProxy
    from dedup_sdk.testing.local_kafka import LocalKafka
    from dedup_sdk.testing.mock_kafka import MockKafka
    from dedup_sdk.testing.ports import free_port

__all__ = ["CuttingProxy", "LocalKafka", "MockKafka", "free_port"]

_MODULE_OF = {
    "CuttingProxy": "cutting_proxy",
    "LocalKafka": "local_kafka",
    "MockKafka": "mock_kafka",
    "free_port": "ports",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used."""
    if name not in _MODULE_OF:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
