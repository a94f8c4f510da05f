"""The functions of librdkafka's mock cluster, called in the very library that confluent-kafka has loaded.

confluent-kafka does not wrap them. They are exported, but "not covered by API and ABI stability" in librdkafka's
words: what is not there is said in one line, and nothing else of this package depends on them.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, Self

import confluent_kafka

from dedup_sdk.errors import KafkaHelperError

_INT16, _INT32, _INT64 = ctypes.c_int16, ctypes.c_int32, ctypes.c_int64
_INT, _TEXT, _HANDLE = ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p

# Of each function what it answers and what it takes.
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (_HANDLE, []),
    "rd_kafka_conf_set": (_INT, [_HANDLE, _TEXT, _TEXT, _TEXT, ctypes.c_size_t]),
    "rd_kafka_new": (_HANDLE, [_INT, _HANDLE, _TEXT, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_HANDLE]),
    "rd_kafka_mock_cluster_new": (_HANDLE, [_HANDLE, _INT]),
    "rd_kafka_mock_cluster_destroy": (None, [_HANDLE]),
    "rd_kafka_mock_cluster_bootstraps": (_TEXT, [_HANDLE]),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [_HANDLE, _INT32]),
    "rd_kafka_mock_topic_create": (_INT, [_HANDLE, _TEXT, _INT, _INT]),
    "rd_kafka_mock_topic_set_error": (None, [_HANDLE, _TEXT, _INT]),
    "rd_kafka_mock_push_request_errors_array": (
        None,
        [_HANDLE, _INT16, ctypes.c_size_t, ctypes.POINTER(_INT)],
    ),
    "rd_kafka_mock_clear_request_errors": (None, [_HANDLE, _INT16]),
    "rd_kafka_mock_broker_set_down": (_INT, [_HANDLE, _INT32]),
    "rd_kafka_mock_broker_set_up": (_INT, [_HANDLE, _INT32]),
    "rd_kafka_mock_broker_set_rtt": (_INT, [_HANDLE, _INT32, _INT]),
    "rd_kafka_mock_partition_set_leader": (_INT, [_HANDLE, _TEXT, _INT32, _INT32]),
    "rd_kafka_mock_partition_delete_records": (_INT, [_HANDLE, _TEXT, _INT32, _INT64]),
    "rd_kafka_mock_coordinator_set": (_INT, [_HANDLE, _TEXT, _TEXT, _INT32]),
}

_PRODUCER = 0
_ERROR_BYTES = 512


class MockLibrary:
    """librdkafka with typed functions; each raises nothing and answers what the C function answers."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise KafkaHelperError(
                    f"librdkafka {confluent_kafka.libversion()[0]} has no {name}: install confluent-kafka's own wheel, "
                    "or use LocalKafka"
                ) from None
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function

    @classmethod
    @functools.cache
    def load(cls) -> Self:
        """Find the loaded library; the same object every time.

        Raises:
            KafkaHelperError: it is not where the wheel puts it, or hides the mock cluster.
        """
        return cls(ctypes.CDLL(str(_library_file())))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a C function by its name."""
        return self._functions[name](*arguments)

    def new_client(self) -> int:
        """A client that a cluster can belong to; it connects to nothing."""
        said = ctypes.create_string_buffer(_ERROR_BYTES)
        conf = self.call("rd_kafka_conf_new")
        self.call("rd_kafka_conf_set", conf, b"log_level", b"0", said, len(said))
        client = self.call("rd_kafka_new", _PRODUCER, conf, said, len(said))
        if not client:
            raise KafkaHelperError(f"librdkafka made no client for MockKafka: {said.value.decode()}")
        return int(client)


def _library_file() -> Path:
    package = Path(confluent_kafka.__file__).parent
    # Where auditwheel (Linux) and delocate (macOS) put what a wheel brings along.
    for folder, pattern in (
        (package.with_name("confluent_kafka.libs"), "librdkafka-*.so*"),
        (package / ".dylibs", "librdkafka*.dylib"),
    ):
        for found in sorted(folder.glob(pattern)):
            return found
    raise KafkaHelperError(
        f"confluent-kafka in {package} brings no librdkafka of its own, whose mock cluster MockKafka is: "
        "install its wheel, or use LocalKafka"
    )
