from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.snippet_programs import mutants, mypy, programs, pyright, write

if TYPE_CHECKING:
    from pathlib import Path

CHECKERS = {"mypy": mypy, "pyright": pyright}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Programs in a folder.

    Attributes:
        right: the examples, as they stand.
        wrong: the name that is misspelt in each mutant, by file name.
    """

    folder: Path
    right: set[str]
    wrong: dict[str, str]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """All examples, and each of them with each of its mistakes, in one folder."""
    right = programs()
    wrong = {
        f"misspelt/{name.removesuffix('.py').replace('/', '_')}_{number}.py": mutant
        for name, text in right.items()
        for number, mutant in enumerate(mutants(text))
    }
    folder = tmp_path_factory.mktemp("snippets")
    write(folder, right | {name: text for name, (text, _) in wrong.items()})
    return Written(
        folder=folder, right=set(right), wrong={name: misspelt for name, (_, misspelt) in wrong.items()}
    )


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_nothing_in_any_example_and_every_misspelt_name(
    checker: str, written: Written
) -> None:
    """One run reads every snippet of the pages, `examples/` and `tests/typing`, and a mutant for each attribute."""
    found = CHECKERS[checker](written.folder)
    assert [each for each in found if each.file in written.right] == []
    texts = {file: "\n".join(each.text for each in found if each.file == file) for file in written.wrong}
    assert {file: name for file, name in written.wrong.items() if f'"{name}"' not in texts[file]} == {}


def test_every_example_has_a_mutant(written: Written) -> None:
    """No example is without a name that can be misspelt: none is left out of the test above."""
    mutated = {file.rpartition("_")[0].removeprefix("misspelt/") for file in written.wrong}
    examples = {name.removesuffix(".py").replace("/", "_") for name in written.right}
    assert examples - mutated == {"shop___init__"}
    assert len(examples) > 80
    assert len(written.wrong) > 250
