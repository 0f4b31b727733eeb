"""Which pairs of statements each system refuses: what ``docs/refusals.md`` says is what happens (``refusals.py``)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from interop.conftest import Place
from interop.refusals import COMMUTING, CONFLICTING, CONFLICTS, NAMESPACE, Runner, counts, kept, markdown, play_all
from interop.systems import FrazilSystem, JavaSystem, PyIcebergSystem

pytestmark = pytest.mark.interop

PAGE = Path(__file__).resolve().parents[2] / "docs" / "refusals.md"


@pytest.mark.timeout(900)
def test_frazil_refuses_no_pair_that_commutes_and_every_conflict_and_the_peers_do_as_was_kept(
    sqlite_place: Place,
) -> None:
    java = sqlite_place.iceberg_java()
    with sqlite_place.lake() as lake:
        lake.create_namespace(NAMESPACE)
        systems = (FrazilSystem(lake), JavaSystem(java), PyIcebergSystem(sqlite_place.pyiceberg()))
        results = play_all(Runner(lake, java), systems, print)
    for subject, pairs in COMMUTING.items():
        assert counts(results[subject], "Frazil") == {"landed": len(pairs)}, subject
    assert counts(results[CONFLICTS], "Frazil") == {"refused": len(CONFLICTING)}
    assert results == kept(), "a peer does better or worse than it did: run benchmarks/refusals.py"


def test_the_generated_part_of_the_page_shows_the_results_that_were_kept() -> None:
    before, mark, rest = PAGE.read_text().partition("<!-- generated: make docs -->\n")
    _, end, after = rest.partition("\n<!-- end -->")
    assert mark
    assert end
    whole = f"{before}{mark}{markdown(kept())}{end}{after}"
    if os.environ.get("FRAZIL_WRITE_DOCS"):
        PAGE.write_text(whole)
    assert PAGE.read_text() == whole, "run FRAZIL_WRITE_DOCS=1 pytest tests/interop/test_refusals.py -k generated"
