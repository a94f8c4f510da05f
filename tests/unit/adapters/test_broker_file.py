"""Configuration files of brokers: as they are, with gaps, and hostile ones."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from dedup_adapters import _broker_file as broker_file
from dedup_adapters import artemis, hornetq
from dedup_sdk import ConfigurationError, Window

ARTEMIS = """\
<?xml version='1.0'?>
<!-- as `artemis create` writes it, shortened -->
<configuration xmlns="urn:activemq" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
               xmlns:xi="http://www.w3.org/2001/XInclude" \
xsi:schemaLocation="urn:activemq /schema/artemis-configuration.xsd">
   <core xmlns="urn:activemq:core" xsi:schemaLocation="urn:activemq:core ">
      <name>0.0.0.0</name>
      <persistence-enabled>true</persistence-enabled>
      <id-cache-size>5000</id-cache-size>
      <persist-id-cache>false</persist-id-cache>
      <cluster-password>secret</cluster-password>
      <acceptors>
         <acceptor name="artemis">tcp://0.0.0.0:61616?amqpDuplicateDetection=true</acceptor>
      </acceptors>
      <address-settings>
         <address-setting match="activemq.management#">
            <dead-letter-address>DLQ</dead-letter-address>
            <max-size-bytes>-1</max-size-bytes>
         </address-setting>
         <address-setting match="#">
            <dead-letter-address>DLQ</dead-letter-address>
         </address-setting>
         <address-setting match="orders.#">
            <!-- resent for days -->
            <id-cache-size> 50000 </id-cache-size>
            <redelivery-delay>0</redelivery-delay>
         </address-setting>
         <address-setting match="audit.*"><id-cache-size>0</id-cache-size></address-setting>
         <xi:include href="more-settings.xml"/>
      </address-settings>
      <addresses><address name="DLQ"><anycast><queue name="DLQ"/></anycast></address></addresses>
   </core>
   <jms xmlns="urn:activemq:jms"/>
</configuration>
"""
HORNETQ = """\
<configuration xmlns="urn:hornetq" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
               xsi:schemaLocation="urn:hornetq /schema/hornetq-configuration.xsd">
   <paging-directory>data/paging</paging-directory>
   <id-cache-size>3000</id-cache-size>
   <persist-id-cache>true</persist-id-cache>
   <address-settings>
      <address-setting match="#"><max-size-bytes>10485760</max-size-bytes></address-setting>
   </address-settings>
</configuration>
"""


def written(folder: Path, text: str | bytes) -> Path:
    """A file with this content."""
    path = folder / "broker.xml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_file_of_artemis(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Sizes, persistence, addresses; all else is named once, without its values."""
    path = written(tmp_path, ARTEMIS)
    with caplog.at_level(logging.WARNING, "dedup_adapters"):
        found = artemis.from_broker_xml(path)
    assert (found.id_cache_size, found.persist_id_cache) == (5000, False)
    assert found.addresses == {"orders.#": 50_000, "audit.*": 0}
    assert not found.lookup.persist
    assert str(found.lookup.id) == "header:_AMQ_DUPL_ID"
    assert found.lookup.window_of("orders.eu") == Window(count=50_000)
    assert found.lookup.window_of("audit.log").is_off
    assert found.lookup.window_of("news") == Window(count=5000)
    assert found.not_carried_over == (
        "configuration: jms",
        "core: name, persistence-enabled, cluster-password, acceptors, addresses",
        "address-settings: the content of more-settings.xml, which was not read",
        "address-setting activemq.management#: dead-letter-address, max-size-bytes",
        "address-setting #: dead-letter-address",
        "address-setting orders.#: redelivery-delay",
    )
    [record] = caplog.records
    assert record.getMessage() == f"{path}: not carried over: {'; '.join(found.not_carried_over)}"
    assert "secret" not in record.getMessage()


def test_a_file_of_hornetq(tmp_path: Path) -> None:
    """Everything stands in <configuration> itself."""
    found = hornetq.from_configuration_xml(written(tmp_path, HORNETQ))
    assert (found.id_cache_size, found.persist_id_cache, found.addresses) == (3000, True, {})
    assert found.lookup == hornetq.duplicate_detection(id_cache_size=3000)
    assert found.not_carried_over == ("core: paging-directory", "address-setting #: max-size-bytes")


def test_what_a_file_does_not_say_is_as_the_broker_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is left out, so that nothing is said."""
    path = written(tmp_path, "<configuration/>")
    assert artemis.from_broker_xml(path).lookup == artemis.duplicate_detection()
    assert hornetq.from_configuration_xml(str(path)).lookup == hornetq.duplicate_detection()
    read = artemis.from_broker_xml(path, id="key")  # type: ignore[arg-type]
    assert read.lookup == artemis.duplicate_detection(id="key")  # type: ignore[arg-type]
    assert artemis.from_broker_xml(path).not_carried_over == ()
    assert caplog.records == []


def test_the_setting_with_a_size_counts_before_a_closer_one_without(tmp_path: Path) -> None:
    """Settings are laid over each other: a value missing in the closer one is that of the next one."""
    settings = (
        '<address-setting match="#"><id-cache-size>9</id-cache-size></address-setting><address-setting '
        'match="a.#"/>'
    )
    found = artemis.from_broker_xml(
        written(
            tmp_path,
            f"<configuration><core><address-settings>{settings}</address-settings></core></configuration>",
        )
    )
    assert found.lookup.window_of("a.b") == Window(count=9)


def test_a_broker_with_another_syntax(tmp_path: Path) -> None:
    """Its characters are taken over."""
    syntax = "<wildcard-addresses><delimiter>/</delimiter><any-words>&gt;</any-words></wildcard-addresses>"
    setting = (
        "<address-settings><address-setting "
        'match="a/&gt;"><id-cache-size>9</id-cache-size></address-setting></address-settings>'
    )
    found = artemis.from_broker_xml(
        written(tmp_path, f"<configuration><core>{syntax}{setting}</core></configuration>")
    )
    assert found.lookup.window_of("a/b/c") == Window(count=9)
    assert (found.wildcards.delimiter, found.wildcards.any_words, found.wildcards.single_word) == (
        "/",
        ">",
        "*",
    )


def sized(match: str, content: str = "<id-cache-size>9</id-cache-size>") -> str:
    """One address-setting."""
    return f'<address-setting match="{match}">{content}</address-setting>'


def test_a_literal_match_is_an_address(tmp_path: Path) -> None:
    """Its markers go; where its name has the characters of wildcards no size is carried over, and that is said."""
    settings = sized("(orders.eu)") + sized("(orders.#)") + sized("(a.*)", "<x/>") + sized("orders.#")
    path = written(
        tmp_path,
        core(
            f"<literal-match-markers>()</literal-match-markers><address-settings>{settings}</address-settings>"
        ),
    )
    found = artemis.from_broker_xml(path)
    assert found.addresses == {"orders.eu": 9, "orders.#": 9}
    assert found.not_carried_over == (
        "address-setting (orders.#): id-cache-size of an address with wildcards in its name",
        "address-setting (a.*): x",
    )
    # Without markers it is a name like others.
    found = artemis.from_broker_xml(
        written(tmp_path, core(f"<address-settings>{sized('(orders.eu)')}</address-settings>"))
    )
    assert found.addresses == {"(orders.eu)": 9}


def test_what_stands_beside_the_characters_is_named(tmp_path: Path) -> None:
    """Also a mistake in their names."""
    syntax = "<wildcard-addresses><routing-enabled>false</routing-enabled><delimeter>/</delimeter></wildcard-addresses>"
    found = artemis.from_broker_xml(written(tmp_path, core(syntax)))
    assert found.not_carried_over == ("wildcard-addresses: routing-enabled, delimeter",)


def test_a_match_may_stand_twice_where_both_say_the_same(tmp_path: Path) -> None:
    """Nothing hangs on which of them counts."""
    settings = sized("a") + sized("a") + sized("b", "") + sized("b", "")
    path = written(tmp_path, core(f"<address-settings>{settings}</address-settings>"))
    assert artemis.from_broker_xml(path).addresses == {"a": 9}


def test_the_file_of_the_other_broker_is_refused(tmp_path: Path) -> None:
    """The IDs of its messages are in another header: none would be found."""
    path = written(tmp_path, HORNETQ)
    with pytest.raises(
        ConfigurationError,
        match=r"has the XML namespace 'urn:hornetq', not 'urn:activemq'; give a broker\.xml",
    ):
        artemis.from_broker_xml(path)
    path = written(tmp_path, ARTEMIS)
    with pytest.raises(
        ConfigurationError, match=r"namespace 'urn:activemq', not 'urn:hornetq'; give a hornetq-conf"
    ):
        hornetq.from_configuration_xml(path)


def core(content: str) -> str:
    """A file with this inside."""
    return f"<configuration xmlns='urn:activemq'><core xmlns='urn:activemq:core'>{content}</core></configuration>"


BILLION = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
HOSTILE: dict[str, str | bytes] = {
    "empty": "",
    "no XML": "id-cache-size=5",
    "cut off": ARTEMIS[: len(ARTEMIS) // 2],
    "entities": f"{BILLION}<configuration><id-cache-size>&b;</id-cache-size></configuration>",
    "external": '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><configuration>&a;</configuration>',
    "a document type": '<!DOCTYPE x SYSTEM "http://localhost/x.dtd"><configuration/>',
    "no UTF-8": b"<configuration>\xff</configuration>",
    "an unknown encoding": b"<?xml version='1.0' encoding='klingon'?><configuration/>",
    "nul bytes": b"<configuration>\0</configuration>",
    "another file": '<server xmlns="urn:jboss:domain:1.4"><id-cache-size>5</id-cache-size></server>',
    "negative": core("<id-cache-size>-1</id-cache-size>"),
    "a fraction": core("<id-cache-size>1.5</id-cache-size>"),
    "other digits": core("<id-cache-size>\u0665</id-cache-size>"),
    "too large": core("<id-cache-size>2147483648</id-cache-size>"),
    "very many digits": core(f"<id-cache-size>{'9' * 100_000}</id-cache-size>"),
    "no number": core("<id-cache-size>many\nlines</id-cache-size>"),
    "nothing": core("<id-cache-size/>"),
    "a placeholder": core("<id-cache-size>${ids:20000}</id-cache-size>"),
    "twice": core("<id-cache-size>1</id-cache-size><id-cache-size>2</id-cache-size>"),
    "no flag": core("<persist-id-cache>yes</persist-id-cache>"),
    "no match": core(
        "<address-settings>"
        "<address-setting><id-cache-size>5</id-cache-size></address-setting>"
        "</address-settings>"
    ),
    "a bad match": core(
        "<address-settings>"
        '<address-setting match="a.#.b"><id-cache-size>5</id-cache-size></address-setting>'
        "</address-settings>"
    ),
    "a placeholder in a match": core(
        "<address-settings>"
        '<address-setting match="${queue}"><id-cache-size>5</id-cache-size></address-setting>'
        "</address-settings>"
    ),
    "a negative size of a match": core(
        "<address-settings>"
        '<address-setting match="a"><id-cache-size>-5</id-cache-size></address-setting>'
        "</address-settings>"
    ),
    "another namespace": (
        "<x:configuration xmlns:x='urn:x'>"
        "<x:core><x:id-cache-size>7</x:id-cache-size></x:core>"
        "</x:configuration>"
    ),
    "a very long namespace": f"<configuration xmlns='{'x' * 5000}'/>",
    "two cores": "<configuration><core/><core><id-cache-size>8</id-cache-size></core></configuration>",
    "two lists of settings": core("<address-settings/><address-settings/>"),
    "two lists of characters": core("<wildcard-addresses/><wildcard-addresses/>"),
    "a match with two sizes": core(
        f"<address-settings>{sized('a')}"
        f"{sized('a', '<id-cache-size>8</id-cache-size>')}</address-settings>"
    ),
    "a match with a size and without": core(f"<address-settings>{sized('a')}{sized('a', '')}</address-settings>"),
    "three markers": core("<literal-match-markers>(#)</literal-match-markers>"),
    "two characters": core("<wildcard-addresses><delimiter>..</delimiter></wildcard-addresses>"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_an_error_in_one_line(name: str, tmp_path: Path) -> None:
    """Short, whatever the file holds."""
    path = written(tmp_path, HOSTILE[name])
    for read in (artemis.from_broker_xml, hornetq.from_configuration_xml):
        with pytest.raises(ConfigurationError) as caught:
            read(path)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < len(str(path)) + 250


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A folder is none either, nor is a number."""
    for path in (tmp_path / "none.xml", tmp_path, f"{tmp_path}/a\0b", None):
        with pytest.raises(ConfigurationError, match=r"give a broker\.xml"):
            artemis.from_broker_xml(path)  # type: ignore[arg-type]


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing above the bound is parsed."""
    monkeypatch.setattr(broker_file, "MOST_BYTES", len(HORNETQ))
    assert hornetq.from_configuration_xml(written(tmp_path, HORNETQ)).id_cache_size == 3000
    with pytest.raises(ConfigurationError, match="more than"):
        hornetq.from_configuration_xml(written(tmp_path, HORNETQ + " "))


def test_a_deep_file_and_many_names(tmp_path: Path) -> None:
    """Neither stops the reading, and the line stays readable."""
    deep = core("<x>" * 50_000 + "</x>" * 50_000)
    assert artemis.from_broker_xml(written(tmp_path, deep)).not_carried_over == ("core: x",)
    many = core("".join(f"<x{number}/>" for number in range(5000)) + f"<{'y' * 5000}/>")
    [line] = artemis.from_broker_xml(written(tmp_path, many)).not_carried_over
    assert line.endswith("x19 and 4981 more")


def test_without_the_library_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for when a file is read, and not before."""
    monkeypatch.setitem(sys.modules, "defusedxml", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'dedup-sdk\[artemis\]'"):
        artemis.from_broker_xml(written(tmp_path, ARTEMIS))
    assert artemis.duplicate_detection().persist
