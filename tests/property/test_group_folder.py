"""A group's name as a folder: whatever it is, it stays inside, can be found, and is no other group's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.store.manifest import MANIFEST_NAME
from spark_backfill.group_folder import group_folder

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300) | st.sampled_from(
    [
        ".",
        "..",
        "../../x",
        "/etc",
        "a/b",
        "a%2Fb",
        "a%252Fb",
        ".x",
        "%2Ex",
        "~",
        "*",
        "manifest.json",
        "\0",
        "\n",
    ]
)


@given(names, names)
@example("../../x", "..%2F..%2Fx")
@example(".x", "%2Ex")
@example("manifest.json", "manifest%2Ejson")
@example("Manifest.json", "manifest.json")
@example("x" * 255, "x" * 256)
@example("." + "x" * 254, "%2E" + "x" * 252)
@example("\U0001f511" * 63, "\U0001f511" * 64)
def test_a_folder_is_a_plain_name_of_one_group(one: str, other: str) -> None:
    """One step below where it is put, of characters that no system minds, never hidden, and another one for every group."""
    folder = group_folder(one)
    assert Path("/out", folder).resolve().parent == Path("/out")
    assert folder.isascii()
    assert folder.isprintable()
    assert not set(folder) & set("/\\*?[]{}:'\" ")
    assert not folder.startswith(".")
    assert folder.lower() != MANIFEST_NAME
    assert 0 < len(folder) <= 255
    assert (group_folder(other) == folder) == (one == other)


def test_what_no_folder_can_be_called_is_named() -> None:
    """A name with half a character cannot be written."""
    with pytest.raises(ConfigurationError, match="no Unicode text"):
        group_folder("a\udc80")
