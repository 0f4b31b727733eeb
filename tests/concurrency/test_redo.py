"""The campaign of ``concurrency/redo`` in short: ``make redo`` runs 200 statements of each verb."""

from __future__ import annotations

from pathlib import Path

import pytest

from concurrency.redo.campaign import VERBS, Plan, Verb, run
from concurrency.writers import Address


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("verb", VERBS)
def test_statements_beside_appends_of_matching_rows_all_land(
    verb: Verb, database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    sqlite = f"sqlite:///{tmp_path}/catalog.db"
    uri = sqlite if database == "sqlite" else request.getfixturevalue("postgres_uri")
    report = run(Address(uri, "ns.t", f"file://{tmp_path}/warehouse"), Plan(verb, 12, 2, updaters=1, compactors=1))
    print(report)
    assert report.errors == []
    assert report.wrong == []
    assert len(report.seconds) == 12
