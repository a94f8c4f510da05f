"""Reads duplicate detection settings from the configuration file of an Artemis or HornetQ broker.

    <configuration xmlns="urn:activemq">
      <core xmlns="urn:activemq:core">         HornetQ has these elements in <configuration> itself
        <id-cache-size>20000</id-cache-size>
        <persist-id-cache>true</persist-id-cache>
        <wildcard-addresses> <delimiter>.</delimiter> … </wildcard-addresses>
        <address-settings>
          <address-setting match="orders.#"> <id-cache-size>50000</id-cache-size> … </address-setting>

The file has the namespace of its broker, or none. An element that occurs twice is refused, because broker
versions differ in which one counts. The file is untrusted: entities, document types and more than 16 MiB
are refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dedup_adapters._address_settings import Wildcards, check_size
from dedup_sdk import ConfigurationError, Lookup
from dedup_sdk.errors import shown

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

logger = logging.getLogger("dedup_adapters")

MOST_BYTES: Final = 16 * 2**20
_MOST_NAMED = 20
_MOST_SHOWN = 60
_SIZE, _PERSIST, _ADDRESSES, _WILDCARDS, _LITERAL = (
    "id-cache-size", "persist-id-cache", "address-settings", "wildcard-addresses", "literal-match-markers",
)  # fmt: skip
_CHARACTERS: Final = {"delimiter": "delimiter", "any-words": "any_words", "single-word": "single_word"}
_INCLUDE = "{http://www.w3.org/2001/XInclude}include"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The duplicate detection settings of a broker's file.

    ``lookup`` is the strategy with these settings, for `DedupConsumer` or `Deduplicator`.
    ``not_carried_over`` has one line for each part of the file that the strategy does not contain.
    """

    id_cache_size: int
    persist_id_cache: bool
    addresses: dict[str, int]
    """Cache sizes by match, in the file's order, without address settings that have no size."""
    wildcards: Wildcards
    lookup: Lookup
    not_carried_over: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """The settings as in the file; None where the file has no value."""

    id_cache_size: int | None
    persist_id_cache: bool | None
    addresses: dict[str, int]
    wildcards: Wildcards
    not_carried_over: tuple[str, ...]


def read_broker_file(path: str | Path, usual_name: str, namespace: str) -> FileSettings:
    """Read a broker's configuration, and log once which settings are not carried over.

    ``usual_name`` is the usual file name, for error messages; ``namespace`` is the XML namespace of the
    broker's files. Raises `ConfigurationError`, in one line, for a file that is missing, unsafe or not a
    broker's configuration.
    """
    root = _parsed(path, usual_name)
    if _name(root) != "configuration":
        raise ConfigurationError(
            f"{path} has the root element <{_shown(_name(root))}>, not <configuration>; give a {usual_name}"
        )
    given = _namespace(root)
    if given not in ("", namespace):
        raise ConfigurationError(
            f"{path} has the XML namespace {shown(given)}, not {shown(namespace)}; give a {usual_name}, or use "
            "the adapter of the other broker"
        )
    where = str(path)
    inside = _child(root, "core", where)
    core = root if inside is None else inside
    size, persist = _text(core, _SIZE, where), _text(core, _PERSIST, where)
    left = [] if inside is None else [*_others(root, "configuration", {"core"})]
    left += _others(core, "core", {_SIZE, _PERSIST, _ADDRESSES, _WILDCARDS, _LITERAL})
    wildcards, not_taken = _wildcards(core, where)
    addresses, not_read = _addresses(core, wildcards, where)
    left += [*not_taken, *not_read]
    found = FileSettings(
        id_cache_size=None if size is None else _size(size, f"{path}: {_SIZE}"),
        persist_id_cache=None if persist is None else _flag(persist, f"{path}: {_PERSIST}"),
        addresses=addresses,
        wildcards=wildcards,
        not_carried_over=tuple(left),
    )
    if left:
        logger.warning(
            "%s: not carried over: %s", path, "; ".join(left), extra={"event": "broker-file-left-out"}
        )
    return found


def _parsed(path: str | Path, usual_name: str) -> Element:
    try:
        from defusedxml import ElementTree
    except ImportError as error:
        raise ConfigurationError(
            f"reading {usual_name} needs defusedxml, which is not installed: pip install 'dedup-sdk[artemis]'"
        ) from error
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, TypeError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigurationError(f"{shown(path)} cannot be read ({why}); give a {usual_name}") from error
    if len(content) > MOST_BYTES:
        raise ConfigurationError(f"{path} has more than {MOST_BYTES} bytes; give a {usual_name}")
    try:
        root: Element = ElementTree.fromstring(content, forbid_dtd=True)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        # defusedxml's own errors are ValueErrors; an unknown encoding is a LookupError.
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigurationError(
            f"{path} cannot be read as XML without entities ({_shown(cause)}); give a {usual_name}"
        ) from None
    return root


def _addresses(core: Element, wildcards: Wildcards, path: str) -> tuple[dict[str, int], list[str]]:
    """Return the sizes by match, and a line for each other setting."""
    literal, settings = _literal_markers(core, path), _child(core, _ADDRESSES, path)
    if settings is None:
        return {}, []
    sizes: dict[str, int | None] = {}
    left = [*_others(settings, _ADDRESSES, {"address-setting"})]
    for setting in (each for each in settings if _name(each) == "address-setting"):
        match = setting.get("match")
        if not match:
            raise ConfigurationError(f'{path}: an address-setting has no match; write e.g. match="orders.#"')
        if "${" in match:
            raise ConfigurationError(
                f"{path}: match {shown(match)} has a placeholder, whose value is not in the file; write the "
                f"address"
            )
        text, called = _text(setting, _SIZE, path), f"address-setting {_shown(match)}"
        size = None if text is None else _size(text, f"{path}: {_SIZE} of match {shown(match)}")
        left += _others(setting, called, {_SIZE})
        if literal and match.startswith(literal[0]) and match.endswith(literal[1]):
            match = match[1:-1]
            if wildcards.any_words in match or wildcards.single_word in match:
                left += (
                    [] if size is None else [f"{called}: {_SIZE} of an address with wildcards in its name"]
                )
                continue
        if sizes.setdefault(match, size) != size:
            raise ConfigurationError(
                f"{path}: match {shown(match)} occurs twice, with different sizes or once without one; "
                "remove the one that the broker ignores"
            )
    return {match: size for match, size in sizes.items() if size is not None}, left


def _literal_markers(core: Element, path: str) -> str:
    """Return the two characters that surround a match without wildcards; empty where the file has none."""
    text = _text(core, _LITERAL, path) or ""
    if len(text) not in (0, 2):
        raise ConfigurationError(f"{path}: {_LITERAL} is {shown(text)}; write two characters, e.g. ()")
    return text


def _others(element: Element, called: str, known: set[str]) -> Iterator[str]:
    """Yield a line that names the other children of an element, and one for each include."""
    for each in element:
        if each.tag == _INCLUDE:
            yield f"{called}: the content of {_shown(each.get('href') or 'an include')}, which was not read"
    names = dict.fromkeys(_name(each) for each in element if each.tag != _INCLUDE)
    left = [_shown(name) for name in names if name not in known]
    if left:
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        yield f"{called}: {', '.join(left[:_MOST_NAMED])}{more}"


def _wildcards(core: Element, path: str) -> tuple[Wildcards, list[str]]:
    """Return the wildcard characters, and a line for each other setting beside them."""
    element = _child(core, _WILDCARDS, path)
    if element is None:
        return Wildcards(), []
    texts = {setting: _text(element, name, path) for name, setting in _CHARACTERS.items()}
    characters = {setting: text for setting, text in texts.items() if text is not None}
    return Wildcards(**characters), [*_others(element, _WILDCARDS, set(_CHARACTERS))]


def _child(element: Element, name: str, path: str) -> Element | None:
    """Return the only child of that name, None where there is none."""
    found = [each for each in element if _name(each) == name]
    if len(found) > 1:
        raise ConfigurationError(f"{path}: {name} occurs {len(found)} times in <{_name(element)}>; keep one")
    return found[0] if found else None


def _text(element: Element, name: str, path: str) -> str | None:
    """Return the text of the only child of that name, None where there is none."""
    child = _child(element, name, path)
    return None if child is None else "".join(child.itertext()).strip()


def _size(text: str, where: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", text, re.ASCII):
        raise ConfigurationError(
            f"{where} is {shown(text)}, not a whole number from 0 on; write the number that the broker "
            "uses, e.g. 20000"
        )
    check_size(where, int(text))
    return int(text)


def _flag(text: str, where: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"{where} is {shown(text)}; write true or false")
    return text.lower() == "true"


def _name(element: Element) -> str:
    """Return the name without its namespace."""
    return str(element.tag).rpartition("}")[2]


def _namespace(element: Element) -> str:
    """Return the namespace, empty where there is none."""
    return str(element.tag).rpartition("}")[0].removeprefix("{")


def _shown(text: str) -> str:
    """Return a text of the file (or its beginning) in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}…"
