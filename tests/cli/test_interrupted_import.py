"""Ctrl-C while the command is still being imported."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._cli import main

if TYPE_CHECKING:
    from collections.abc import Sequence

_APP = "dedup_sdk._cli.app"


class Interrupting:
    """Finds no module, and raises what Ctrl-C does when the command's own is looked for."""

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: object = None) -> None:
        """Return nothing for all other modules."""
        if name == _APP:
            raise KeyboardInterrupt


def test_it_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the status that shells expect."""
    monkeypatch.delitem(sys.modules, _APP, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "dedup: interrupted\n")
