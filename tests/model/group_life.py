"""One group of one member on one partition, led step by step: over the real session, recovery and engine."""

from __future__ import annotations

from typing import Any

from confluent_kafka import OFFSET_INVALID, TopicPartition

from dedup_sdk import MemoryStore, Window
from dedup_sdk._commit_text import CommitMetadata, parse_metadata
from tests.model.worlds.broker import TOPIC, Broker, Entry, Log
from tests.model.worlds.disk import Disk
from tests.model.worlds.member import Member, Told
from tests.model.worlds.world import World

GROUP = "g"
_ROUNDS = 60
_WORLD = World(window=Window(days=1))


class GroupLife:
    """A cluster of one topic, two disks ("here" and "elsewhere"), and at most one member at a time.

    Every verdict is checked: a hidden record was handled before, or vouched for. ``settings``: of every member.
    """

    def __init__(self, **settings: Any) -> None:
        self.broker, self.number = Broker([Log()]), 0
        self.disks = {"here": Disk(MemoryStore), "elsewhere": Disk(MemoryStore)}
        self.settings = settings
        self.handled: dict[int, str] = {}
        """The ID of each record that was handled, by its serial number."""
        self.again: list[int] = []
        """The offsets handled again."""
        self.vouched: set[str] = set()
        """IDs that the user says were handled."""
        self.verdicts: dict[int, str] = {}
        """The last verdict of each record, by serial number."""
        self.events: list[str] = []
        self._member: Member | None = None

    @property
    def member(self) -> Member:
        """The process that runs."""
        assert self._member is not None
        return self._member

    # --- the cluster -------------------------------------------------------------------------------------------------

    @property
    def log(self) -> Log:
        """The partition that the group reads."""
        return self.broker.logs[self.number]

    def produce(self, idents: str) -> list[Entry]:
        """Write one record a letter, its ID, a millisecond apart."""
        return [self.broker.append(self.number, each, 1_000 + self.broker.written) for each in idents]

    @property
    def commit(self) -> tuple[int, CommitMetadata | None]:
        """The committed offset, and the text beside it."""
        tp = self.broker.committed[GROUP, self.number]
        return tp.offset, parse_metadata(tp.metadata, committed=tp.offset)

    def set_commit(self, offset: int, metadata: CommitMetadata | None = None) -> None:
        """Commit as somebody else does: a reset tool, or a client that knows nothing of us."""
        text = "" if metadata is None else metadata.text(offset)
        self.broker.committed[GROUP, self.number] = TopicPartition(TOPIC, self.number, offset, text)

    # --- the process -------------------------------------------------------------------------------------------------

    def start(self, disk: str, offset: int = OFFSET_INVALID, **settings: Any) -> None:
        """Start the process on a disk; ``offset``: where the user's callback has it begin."""
        self.disks[disk].reopen()
        chosen = {"impatient": False, "in_time": False, "reset": "earliest", **self.settings, **settings}
        self._member = Member(
            _WORLD, self.broker, GROUP, self.disks[disk], recent_marks=1_000, durability="record",
            tell=self._told, **chosen,
        )  # fmt: skip
        self._member.take(self.number, offset)

    def _told(self, _: Member, told: Told) -> None:
        [entry] = [each for each in self.log.entries if each.serial == told.serial]
        self.verdicts[told.serial] = told.verdict.kind.value
        known = entry.ident in self.vouched or entry.ident in self.handled.values()
        assert told.verdict.deliver or known, (
            f"{entry} was lost: nobody handled its ID, and yet {told.verdict}"
        )

    def handle(self, *, up_to: int | None = None) -> None:
        """Let the process handle and commit all that there is, or the records below an offset (without a commit)."""
        for _ in range(_ROUNDS):
            self.member.work()
            if up_to is None:
                self._hear()
            self.member.fetch(self.number, 50)
            self._end(self.log.end if up_to is None else up_to)
            held = self.member.held(self.number)
            if held is None or self.number in self.member.client.paused:
                continue
            if held.flight.high == (self.log.end if up_to is None else up_to):
                break
        else:
            raise AssertionError("it does not come to an end")
        if up_to is None:
            self.member.commit()
            self._hear()

    def _hear(self) -> None:
        while self.member.client.unanswered:
            self.member.arrive()

    def _end(self, below: int) -> None:
        """Have the handlers of records below an offset end."""
        for message in list(self.member.in_flight):
            serial, offset = int(message.value() or b""), message.offset() or 0
            if offset < below:
                self.again += [offset] if serial in self.handled else []
                self.handled[serial] = (message.key() or b"").decode()
                self.member.end(message, dead=False)

    def kill(self) -> None:
        """End the process without another word; unanswered commits are not made."""
        self._leave()
        self.member.die()

    def stop(self) -> None:
        """End the process in order."""
        self._leave()
        self.member.give_back(self.number)

    def _leave(self) -> None:
        # Each start recovers, and where it begins is in the table.
        usual = ("recovery-started", "recovery-ended", "recovery-progress", "rewound")
        self.events += [event for event in self.member.engine.counters.events if event not in usual]
