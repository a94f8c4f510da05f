"""Which setting counts for an address, by the words of Artemis' pages on wildcards and address settings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_adapters import artemis, hornetq
from dedup_adapters._address_settings import Wildcards
from dedup_sdk import ConfigurationError, Lookup, Window


def size_for(topic: str, addresses: dict[str, int], wildcards: Wildcards | None = None) -> int:
    """The size of a topic's cache, -1 where the global one counts."""
    window = artemis.duplicate_detection(
        id_cache_size=77, addresses=addresses, wildcards=wildcards
    ).window_of(topic)
    return -1 if window.count == 77 else window.count or 0


@pytest.mark.parametrize(
    ("match", "yes", "no"),
    [
        (
            "news.europe.#",
            ["news.europe", "news.europe.sport", "news.europe.politics", "news.europe.politics.regional"],
            ["news.usa", "news.usa.sport", "entertainment", "news.european", "news"],
        ),
        ("news.*", ["news.europe", "news.usa"], ["news.europe.sport", "news", "news."]),
        ("news.*.sport", ["news.europe.sport", "news.usa.sport"], ["news.europe.politics", "news.sport"]),
        ("#", ["news", "news.europe", "a-b_c"], []),
        ("*", ["news"], ["news.europe"]),
        ("news", ["news"], ["news.europe", "newsx", "xnews"]),
        ("*.eu.#", ["news.eu", "news.eu.sport"], ["news.usa.eu", "eu"]),
        # As broker.xml has it from the start: no delimiter before the last character.
        ("activemq.management#", ["activemq.management", "activemq.management.x"], ["activemq.managementx"]),
        ("a+b.c", ["a+b.c"], ["aab.c", "a+bxc"]),
    ],
)
def test_what_a_match_matches(match: str, yes: list[str], no: list[str]) -> None:
    """Words between delimiters, not characters."""
    assert [topic for topic in yes if size_for(topic, {match: 5}) != 5] == []
    assert [topic for topic in no if size_for(topic, {match: 5}) != -1] == []


def test_the_most_specific_match_wins() -> None:
    """An address before wildcards, one word before any.

    Then the longer text of those with any, a word before a wildcard from the left.
    """
    addresses = {"#": 1, "my.#": 2, "my.destination.#": 3, "my.*": 4, "*.destination": 5, "my.destination": 6}
    asked = ["my.destination", "my.else", "other.destination", "my.destination.eu", "my.a.b", "alone"]
    assert [size_for(topic, addresses) for topic in asked] == [6, 4, 5, 3, 2, 1]
    assert [size_for(topic, dict(reversed(addresses.items()))) for topic in asked] == [6, 4, 5, 3, 2, 1]
    assert size_for("a.b.c", {"*.b.c": 1, "a.*.c": 2, "a.b.*": 3, "a.*.*": 4}) == 3
    assert size_for("a.b.c", {"*.*.#": 1, "a.*.#": 2, "a.#": 3, "a.b.#": 4}) == 4


def test_the_global_size_counts_where_nothing_matches() -> None:
    """Also where everything that matches has none, which cannot be said here."""
    assert size_for("orders", {"news.#": 5}) == -1
    assert artemis.duplicate_detection().window_of("orders") == Window(count=20_000)
    assert hornetq.duplicate_detection().window_of("orders") == Window(count=2_000)


def test_zero_turns_detection_off_for_an_address_or_for_all_others() -> None:
    """The other way round, too."""
    some = artemis.duplicate_detection(addresses={"audit.#": 0})
    assert (some.window_of("audit").is_off, some.window_of("orders").is_off) == (True, False)
    only = artemis.duplicate_detection(id_cache_size=0, addresses={"orders.*": 5})
    assert (only.window_of("audit").is_off, only.window_of("orders.eu")) == (True, Window(count=5))
    assert artemis.duplicate_detection(id_cache_size=0).window == Window.off()


def test_other_characters() -> None:
    """A broker may have its own syntax."""
    wildcards = Wildcards(delimiter="/", any_words=">", single_word="+")
    assert size_for("a/b/c", {"a/>": 5}, wildcards) == 5
    assert size_for("a/b", {"a/+": 5, "a/>": 6}, wildcards) == 5
    assert size_for("a.b", {"a.*": 5}, wildcards) == -1


words = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3).map(".".join)
matches = words | words.map(lambda text: f"{text}.#") | st.just("#")


@given(
    st.dictionaries(matches, st.integers(0, 9), max_size=6),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
)
def test_against_words_one_by_one(addresses: dict[str, int], topic: list[str]) -> None:
    """Of the matches that a naive reading finds, none is more specific than the chosen one."""

    def matching(match: str) -> bool:
        texts = match.split(".")
        if texts[-1] == "#":
            texts = texts[:-1]
            if len(topic) < len(texts):
                return False
        elif len(topic) != len(texts):
            return False
        return all(text in ("*", word) for text, word in zip(texts, topic, strict=False))

    found = [match for match in addresses if matching(match)]
    window = artemis.duplicate_detection(id_cache_size=77, addresses=addresses).window_of(".".join(topic))
    if not found:
        assert window == Window(count=77)
        return
    plain = [match for match in found if "#" not in match]
    if plain:
        # In the order of words from the left, a word before "*".
        chosen = min(plain, key=lambda match: [text == "*" for text in match.split(".")])
        assert window.count == addresses[chosen]
    else:
        longest = max(map(len, found))
        assert window.count in {addresses[match] for match in found if len(match) == longest}


@pytest.mark.parametrize(
    "settings",
    [
        {"id_cache_size": -1},
        {"id_cache_size": 2**31},
        {"id_cache_size": True},
        {"id_cache_size": "20000"},
        {"persist_id_cache": "true"},
        {"persist_id_cache": None},
        {"addresses": ["orders"]},
        {"addresses": {"": 5}},
        {"addresses": {5: 5}},
        {"addresses": {"orders": -1}},
        {"addresses": {"orders": None}},
        {"addresses": {"#.orders": 5}},
        {"addresses": {"a.#.b": 5}},
        {"addresses": {"a.##": 5}},
        {"id": "header:"},
        {"wildcards": "."},
        {"wildcards": {}},
    ],
)
def test_what_no_broker_takes_is_refused(settings: dict[str, Any]) -> None:
    """In one line."""
    for made in (artemis.duplicate_detection, hornetq.duplicate_detection):
        with pytest.raises(ConfigurationError) as caught:
            made(**settings)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "characters", [{"delimiter": ""}, {"any_words": "."}, {"single_word": "**"}, {"delimiter": None}]
)
def test_characters_that_could_not_be_told_apart(characters: dict[str, Any]) -> None:
    """Three different ones."""
    with pytest.raises(ConfigurationError, match="three different"):
        Wildcards(**characters)


def test_what_an_adapter_gives_is_a_strategy() -> None:
    """With the header of its broker, or another ID."""
    assert str(artemis.duplicate_detection().id) == "header:_AMQ_DUPL_ID"
    assert str(hornetq.duplicate_detection().id) == "header:_HQ_DUPL_ID"
    made = artemis.duplicate_detection(id="key", persist_id_cache=False)  # type: ignore[arg-type]
    assert isinstance(made, Lookup)
    assert (str(made.id), made.persist, made.on_missing_id) == ("key", False, "process")
    assert hash(artemis.duplicate_detection(addresses={"a.#": 5})) is not None
