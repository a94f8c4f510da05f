"""Transactions as Artemis and HornetQ define them, as vectors.

They list the rejected IDs, the remembered ones, and the slots taken.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from dedup_adapters import artemis, hornetq
from dedup_sdk import Deduplicator, Record, Unit, header

BROKERS = [artemis, hornetq]


def sent(broker: ModuleType, size: int, transactions: list[str]) -> list[str]:
    """Send transactions, each the IDs of its messages (``-`` has none), with a ring of so many.

    Return those that are delivered.
    """
    dedup = broker.duplicate_detection(id_cache_size=size, unit=header("tx"))
    engine, offset, delivered = Deduplicator(dedup), 0, []
    for number, idents in enumerate(transactions):
        records = []
        for ident in idents:
            headers: list[tuple[str, bytes | None]] = [
                ("tx", b"%d" % number),
                ("dedup-unit-size", b"%d" % len(idents)),
            ]
            headers += [] if ident == "-" else [(broker.DUPLICATE_ID, ident.encode())]
            records.append(Record("orders", 0, offset, headers=headers))
            offset += 1
        verdicts = engine.admit(records)
        taken = [record for record, verdict in zip(records, verdicts, strict=True) if verdict.deliver]
        assert taken in ([], records)
        delivered += [idents] if taken else []
        engine.complete(taken)
    assert engine.next_offset("orders", 0) == offset
    return delivered


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize(
    ("size", "transactions", "delivered"),
    [
        pytest.param(9, ["a", "bca", "b", "c"], ["a", "b", "c"],
                     id="one duplicate rejects all, and nothing of it is remembered"),
        pytest.param(9, ["a-", "-b-", "--", "a"], ["a-", "-b-", "--"], id="one message with an ID is enough"),
        pytest.param(9, ["aba", "a", "b"], ["aba"], id="an ID twice in one transaction is no duplicate"),
        pytest.param(2, ["abcd", "c", "d", "a", "c"], ["abcd", "a", "c"],
                     id="of more IDs than slots the last are left"),
        pytest.param(1, ["ab", "b", "a", "b"], ["ab", "a", "b"], id="of a ring of one the very last"),
        pytest.param(2, ["a", "b", "xa", "a", "b"], ["a", "b"], id="a rejected one takes no slot"),
        pytest.param(2, ["a", "b", "xb", "c", "b", "a"], ["a", "b", "c", "a"], id="nor does it make its IDs younger"),
        pytest.param(3, ["ab", "cd", "a", "b", "d"], ["ab", "cd", "a", "b"],
                     id="slots are taken in the order of the messages"),
    ],
)  # fmt: skip
def test_transactions(broker: ModuleType, size: int, transactions: list[str], delivered: list[str]) -> None:
    """All or nothing, in a ring."""
    assert sent(broker, size, transactions) == delivered


def test_the_broker_s_answer_to_repeats_is_chosen_however_the_unit_is_given() -> None:
    """Both messages with one ID are delivered."""
    for unit in (header("tx"), Unit(id=header("tx"), records=5)):
        chosen = artemis.duplicate_detection(unit=unit).unit
        assert isinstance(chosen, Unit)
        assert (chosen.repeats, str(chosen.id)) == ("deliver", "header:tx")
    assert artemis.duplicate_detection().unit is None
