"""The configuration file of an Artemis or HornetQ broker: what it says of duplicate detection, and what is left out of the rest.

    <configuration xmlns="urn:activemq">
      <core xmlns="urn:activemq:core">                    HornetQ has what is in here in <configuration> itself
        <id-cache-size>20000</id-cache-size>
        <persist-id-cache>true</persist-id-cache>
        <wildcard-addresses> <delimiter>.</delimiter> … </wildcard-addresses>
        <address-settings>
          <address-setting match="orders.#"> <id-cache-size>50000</id-cache-size> … </address-setting>

Namespaces are not looked at. The file is a stranger's: entities, document types and anything above 16 MiB are refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dedup_adapters.address_settings import Wildcards, check_size
from dedup_sdk import ConfigurationError, Lookup

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

logger = logging.getLogger("dedup_adapters")

MOST_BYTES: Final = 16 * 2**20
_MOST_NAMED = 20
_MOST_SHOWN = 60
_SIZE, _PERSIST, _ADDRESSES, _WILDCARDS = (
    "id-cache-size", "persist-id-cache", "address-settings", "wildcard-addresses",
)  # fmt: skip
_CHARACTERS: Final = {"delimiter": "delimiter", "any-words": "any_words", "single-word": "single_word"}
_INCLUDE = "{http://www.w3.org/2001/XInclude}include"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What a broker's file says of duplicate detection.

    ``lookup`` is the same as a strategy, for `DedupConsumer` or `Deduplicator`. ``not_carried_over`` has a line for each part of the file
    that is not in it.
    """

    id_cache_size: int
    persist_id_cache: bool
    addresses: dict[str, int]
    """Sizes by match, in the file's order; only of settings that have one."""
    wildcards: Wildcards
    lookup: Lookup
    not_carried_over: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The settings as they stand in the file; None for what it does not say."""

    id_cache_size: int | None
    persist_id_cache: bool | None
    addresses: dict[str, int]
    wildcards: Wildcards
    not_carried_over: tuple[str, ...]


def read_broker_file(path: str | Path, usual_name: str) -> Found:
    """Read a broker's configuration, and tell the log once what is not carried over.

    Raises `ConfigurationError`, in one line, for a file that is missing, hostile, or something else; ``usual_name`` is what to give instead.
    """
    root = _parsed(path, usual_name)
    if _name(root) != "configuration":
        raise ConfigurationError(f"{path} is a file of <{_shown(_name(root))}>; give a {usual_name}")
    core = next((each for each in root if _name(each) == "core"), root)
    size, persist = _text(core, _SIZE, str(path)), _text(core, _PERSIST, str(path))
    addresses: dict[str, int] = {}
    left = [*_others(root, "configuration", {"core"})] if core is not root else []
    left += _others(core, "core", {_SIZE, _PERSIST, _ADDRESSES, _WILDCARDS})
    for settings in (each for each in core if _name(each) == _ADDRESSES):
        left += _others(settings, _ADDRESSES, {"address-setting"})
        for setting in (each for each in settings if _name(each) == "address-setting"):
            left += _read_setting(setting, addresses, str(path))
    found = Found(
        id_cache_size=None if size is None else _size(size, f"{path}: {_SIZE}"),
        persist_id_cache=None if persist is None else _flag(persist, f"{path}: {_PERSIST}"),
        addresses=addresses,
        wildcards=_wildcards(core, str(path)),
        not_carried_over=tuple(left),
    )
    if left:
        logger.warning("%s: not carried over: %s", path, "; ".join(left))
    return found


def _parsed(path: str | Path, usual_name: str) -> Element:
    try:
        from defusedxml import ElementTree
    except ImportError as error:
        raise ConfigurationError(
            f"to read {usual_name} takes defusedxml, which is not installed: pip install 'dedup-sdk[artemis]'"
        ) from error
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path!r} cannot be read ({error}); give a {usual_name}") from error
    if len(content) > MOST_BYTES:
        raise ConfigurationError(f"{path} has more than {MOST_BYTES} bytes; give a {usual_name}")
    try:
        root: Element = ElementTree.fromstring(content, forbid_dtd=True)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        # defusedxml's own errors are ValueErrors, and an encoding that is unknown is a LookupError.
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigurationError(
            f"{path} cannot be read as XML without entities ({_shown(cause)}); give a {usual_name}"
        ) from None
    return root


def _read_setting(setting: Element, addresses: dict[str, int], path: str) -> Iterator[str]:
    """Note the size of one address-setting; yield what else it has."""
    match = setting.get("match")
    if not match:
        raise ConfigurationError(f'{path}: an address-setting has no match; write e.g. match="orders.#"')
    size = _text(setting, _SIZE, path)
    if size is not None:
        addresses[match] = _size(size, f"{path}: {_SIZE} of match {_shown(match)!r}")
    yield from _others(setting, f"address-setting {_shown(match)}", {_SIZE})


def _others(element: Element, called: str, known: set[str]) -> Iterator[str]:
    """Yield a line that names what else is in an element, and one for each include."""
    for each in element:
        if each.tag == _INCLUDE:
            yield f"{called}: what {_shown(each.get('href') or 'an include')} holds, which was not read"
    names = dict.fromkeys(_name(each) for each in element if each.tag != _INCLUDE)
    left = [_shown(name) for name in names if name not in known]
    if left:
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        yield f"{called}: {', '.join(left[:_MOST_NAMED])}{more}"


def _wildcards(core: Element, path: str) -> Wildcards:
    characters: dict[str, str] = {}
    for element in (each for each in core if _name(each) == _WILDCARDS):
        for name, setting in _CHARACTERS.items():
            text = _text(element, name, path)
            if text is not None:
                characters[setting] = text
    return Wildcards(**characters)


def _text(element: Element, name: str, path: str) -> str | None:
    """Return the text of a child, None where there is none."""
    found = [each for each in element if _name(each) == name]
    if len(found) > 1:
        raise ConfigurationError(f"{path}: {name} stands {len(found)} times in <{_name(element)}>; leave one")
    return "".join(found[0].itertext()).strip() if found else None


def _size(text: str, where: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", text, re.ASCII):
        raise ConfigurationError(
            f"{where} is {_shown(text)!r}, no whole number from 0 on; write the number that the broker runs with, e.g. 20000"
        )
    check_size(where, int(text))
    return int(text)


def _flag(text: str, where: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"{where} is {_shown(text)!r}; write true or false")
    return text.lower() == "true"


def _name(element: Element) -> str:
    """Return the name without its namespace."""
    return str(element.tag).rpartition("}")[2]


def _shown(text: str) -> str:
    """Return (the beginning of) a text of the file, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}…"
