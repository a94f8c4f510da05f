"""librdkafka's mock cluster inside this process: up in 0.1 s, and with faults that a real broker does not offer."""

from __future__ import annotations

import ctypes
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import confluent_kafka
from confluent_kafka import KafkaError

from dedup_sdk._masking import shown
from dedup_sdk.errors import KafkaHelperError

if TYPE_CHECKING:
    from types import TracebackType

_INT16, _INT32, _INT64 = ctypes.c_int16, ctypes.c_int32, ctypes.c_int64
_INT, _TEXT, _HANDLE = ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p

# The result type and argument types of each function.
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (_HANDLE, []),
    "rd_kafka_conf_properties_show": (None, [_HANDLE]),
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
    """librdkafka's functions with types; each returns the C function's result, and raises nothing."""

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
        """Return the loaded library; the same object every time.

        Raises:
            KafkaHelperError: it is not at the wheel's path, or hides the mock cluster.
        """
        return cls(ctypes.CDLL(str(_library_file())))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a C function by its name."""
        return self._functions[name](*arguments)

    def new_client(self) -> int:
        """Make a client to own a cluster; it connects to nothing."""
        said = ctypes.create_string_buffer(_ERROR_BYTES)
        conf = self.call("rd_kafka_conf_new")
        self.call("rd_kafka_conf_set", conf, b"log_level", b"0", said, len(said))
        client = self.call("rd_kafka_new", _PRODUCER, conf, said, len(said))
        if not client:
            raise KafkaHelperError(f"librdkafka made no client for MockKafka: {said.value.decode()}")
        return int(client)


def _library_file() -> Path:
    package = Path(confluent_kafka.__file__).parent
    # The folders of auditwheel (Linux) and delocate (macOS) for bundled libraries.
    for folder, pattern in (
        (package.with_name("confluent_kafka.libs"), "librdkafka-*.so*"),
        (package / ".dylibs", "librdkafka*.dylib"),
    ):
        for found in sorted(folder.glob(pattern)):
            return found
    raise KafkaHelperError(
        f"confluent-kafka in {package} bundles no librdkafka, whose mock cluster MockKafka uses: "
        "install its wheel, or use LocalKafka"
    )


API_KEYS: Final = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "Metadata": 3,
    "OffsetCommit": 8,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "JoinGroup": 11,
    "Heartbeat": 12,
    "LeaveGroup": 13,
    "SyncGroup": 14,
    "InitProducerId": 22,
    "OffsetForLeaderEpoch": 23,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
    "ConsumerGroupHeartbeat": 68,
}
"""Requests that can be made to fail, by their names in Kafka's protocol."""

ALL_BROKERS: Final = -1
_ASLEEP_S: Final = 0.002


class MockKafka:
    """A mock Kafka cluster for unit-like tests and examples; any process may connect to it over TCP.

    Supported: produce, fetch, commit, classic and KIP-848 groups, watermarks, headers, timestamps. **Not**
    supported: the admin requests (use `create_topic`), ``offsets_for_times``, transactions as a reader sees
    them (aborted records are delivered), compaction and retention, topic IDs, missing topics (they are made
    with 4 partitions when asked for). A partition keeps 5 MB or 100,000 records. Java clients cannot use
    it. For all these use `LocalKafka`.

    Groups elect at once. Later rebalances wait for the members' ``session.timeout.ms`` minus a second: set it to 2000
    and ``heartbeat.interval.ms`` to 100 in tests. With 1000 or less they wait for the whole session, and a member that
    joins may be removed before it is over, without being told.

    Args:
        brokers: how many, numbered from 1.

    Raises:
        KafkaHelperError: this librdkafka has no mock cluster (one from a system package may hide it).

    Example:
        with MockKafka() as kafka:
            kafka.create_topic("orders", partitions=2)
            kafka.push_errors("OffsetCommit", KafkaError.REBALANCE_IN_PROGRESS)
            consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g"})
    """

    def __init__(self, brokers: int = 1) -> None:
        if brokers < 1:
            raise KafkaHelperError(f"MockKafka(brokers={brokers}): at least 1 is needed")
        self._library = MockLibrary.load()
        self._client = self._library.new_client()
        self._cluster: int = self._library.call("rd_kafka_mock_cluster_new", self._client, brokers)
        self._bootstrap: str = self._library.call("rd_kafka_mock_cluster_bootstraps", self._cluster).decode()
        self._library.call("rd_kafka_mock_group_initial_rebalance_delay_ms", self._cluster, 0)
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """``127.0.0.1:PORT[,127.0.0.1:PORT…]``, for ``bootstrap.servers``."""
        return self._bootstrap

    def stop(self) -> None:
        """End the cluster; all clients lose it. Does nothing the second time."""
        if self._open:
            self._open = False
            time.sleep(_ASLEEP_S)
            self._library.call("rd_kafka_mock_cluster_destroy", self._cluster)
            self._library.call("rd_kafka_destroy", self._client)

    def create_topic(self, name: str, partitions: int = 1, replicas: int = 1) -> str:
        """Create a topic and return its name."""
        self._do("topic_create", name.encode(), partitions, replicas)
        return name

    def push_errors(self, request: str, error: int, count: int = 1) -> None:
        """Let the next `count` requests of a kind fail.

        Args:
            request: a name of `API_KEYS`, e.g. ``OffsetCommit``.
            error: a code of `confluent_kafka.KafkaError`; ``_TRANSPORT`` cuts the connection instead of answering.
            count: how many; 0 = none.
        """
        codes = (ctypes.c_int * count)(*[error] * count)
        key = self._api_key(request)
        self._library.call("rd_kafka_mock_push_request_errors_array", self._alive(), key, count, codes)

    def clear_errors(self, request: str) -> None:
        """Remove the remaining errors of `push_errors` for a kind of request."""
        self._library.call("rd_kafka_mock_clear_request_errors", self._alive(), self._api_key(request))

    def set_topic_error(self, name: str, error: int) -> None:
        """Let metadata requests for a topic answer with `error`; 0 = no longer."""
        self._library.call("rd_kafka_mock_topic_set_error", self._alive(), name.encode(), error)

    def set_broker_down(self, broker: int = ALL_BROKERS) -> None:
        """Cut a broker's connections and refuse new ones; -1 = all brokers."""
        self._do("broker_set_down", broker)

    def set_broker_up(self, broker: int = ALL_BROKERS) -> None:
        """Accept connections again; -1 = all brokers."""
        self._do("broker_set_up", broker)

    def set_rtt(self, milliseconds: int, broker: int = ALL_BROKERS) -> None:
        """Delay every answer; -1 = all brokers."""
        self._do("broker_set_rtt", broker, milliseconds)

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """Move a partition's leader; -1 = it has none."""
        self._do("partition_set_leader", topic.encode(), partition, broker)

    def set_coordinator(self, group: str, broker: int) -> None:
        """Move a group's coordinator."""
        self._do("coordinator_set", b"group", group.encode(), broker)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Remove a partition's records below `before_offset`, as retention does."""
        self._do("partition_delete_records", topic.encode(), partition, before_offset)

    def _alive(self) -> int:
        if not self._open:
            raise KafkaHelperError("MockKafka was stopped: make another one")
        return self._cluster

    def _do(self, function: str, *arguments: bytes | int) -> None:
        # The cluster's thread does it. If it is called again before it sleeps, it may not wake up for a second.
        time.sleep(_ASLEEP_S)
        code = self._library.call(f"rd_kafka_mock_{function}", self._alive(), *arguments)
        if code:
            given = ", ".join(map(shown, arguments))
            raise KafkaHelperError(f"MockKafka: {function}({given}) was refused: {KafkaError(code).str()}")

    def _api_key(self, request: str) -> int:
        if request not in API_KEYS:
            raise KafkaHelperError(
                f"MockKafka knows no request {shown(request)}: one of {', '.join(API_KEYS)}"
            )
        return API_KEYS[request]
