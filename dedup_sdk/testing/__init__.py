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

from typing import TYPE_CHECKING, Final

from dedup_sdk._lazy_names import lazy_names

if TYPE_CHECKING:
    from dedup_sdk.testing._cutting_proxy import CuttingProxy
    from dedup_sdk.testing._local_kafka import LocalKafka
    from dedup_sdk.testing._mock_kafka import MockKafka
    from dedup_sdk.testing._ports import free_port

__all__ = ["CuttingProxy", "LocalKafka", "MockKafka", "free_port"]

_MODULES: Final = {
    "dedup_sdk.testing._cutting_proxy": ("CuttingProxy",),
    "dedup_sdk.testing._local_kafka": ("LocalKafka",),
    "dedup_sdk.testing._mock_kafka": ("MockKafka",),
    "dedup_sdk.testing._ports": ("free_port",),
}

if not TYPE_CHECKING:  # a type checker reads the imports above
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
