"""The list of mutants does not rot: each is one change of today's source that Python can still read."""

from __future__ import annotations

import ast
import textwrap

import pytest

from mutants.listed import MUTANTS
from mutants.mutant import Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies(mutant: Mutant) -> None:
    before, after = (ast.dump(ast.parse(textwrap.dedent(text))) for text in mutant.applied())
    assert before != after


def test_each_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
