"""The rule fingerprint: one short text for everything that a partition's marks depend on besides the log itself.

A mark means "this group completed a record with this ID". With another ID spec, or at another isolation
level, it would hide messages that were never handled. So marks and commits are valid only under the rule
that made them. The identity of a store and the text of every commit contain the rule; if it differs from
the consumer's own, they do not count. The text of a commit names the log, too
(`dedup_sdk._commit_text.log_name`).

The fingerprint is 16 hexadecimal digits of the ID spec (with the order and the source of `LastId`, and the
unit), the digest, the isolation level, and the kind of window: a count window numbers its marks, a time
window does not. The *length* of a window is not part of it, except where a unit is rejected as a whole:
there the length decides which records were never handled.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, Protocol

from dedup_sdk._window import Window, one_unit_text

_RULE_DIGITS: Final = 16
NAMELESS: Final = ("", "unnamed")
"""Placeholders for the ID of a cluster without one."""


def known_cluster(cluster: str) -> str:
    """Return a cluster ID, or "" for a placeholder."""
    return "" if cluster in NAMELESS else cluster


class RuleKeys(Protocol):
    """The keys of a strategy: an ID spec, or the keys of sources or units; their text is part of the rule."""

    @property
    def length_matters(self) -> bool:
        """Whether marks depend on the length of the window."""


def rule_digits(keys: RuleKeys, window: Window, *, digest: str, isolation: str) -> str:
    """Return the digits of a rule."""
    kind = "count" if window.count is not None else "time"
    judged = one_unit_text(window) if keys.length_matters else kind
    parts = [str(keys), digest, isolation.lower(), kind, judged]
    digest_of = sha256()
    for part in map(str.encode, parts):
        digest_of.update(len(part).to_bytes(4) + part)
    return digest_of.hexdigest()[:_RULE_DIGITS]
