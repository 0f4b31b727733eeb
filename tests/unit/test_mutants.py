"""The list of mutants does not rot: each is one change of today's source that Python can still read."""

from __future__ import annotations

import ast

import pytest

from mutants.listed import MUTANTS
from mutants.mutant import SOURCE, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies(mutant: Mutant) -> None:
    path = SOURCE / "frazil" / mutant.file
    before = path.read_text()
    after = mutant.applied(before)
    assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))


def test_each_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
