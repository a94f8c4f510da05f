"""What ends a demo before it could judge anything."""

from __future__ import annotations

from dedup_sdk.errors import DedupError


class DemoError(DedupError):
    """The demo could not be carried out (its data is missing, a worker ended, nothing moved any more)."""
