"""Random histories at serializable, on real catalogs, equal to a sequential model that replays them in commit order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import frazil
from concurrency.histories import interleave, processes
from concurrency.histories.processes import Place
from concurrency.histories.replay import statistics

VERBS = {"append", "overwrite", "replace_partitions", "delete", "update", "upsert", "compact", "transaction"}


@contextlib.contextmanager
def memory() -> Iterator[frazil.Lake]:
    with frazil.connect("memory://") as lake:
        yield lake


@pytest.mark.parametrize("seed", range(6))
def test_interleaved_transactions_equal_the_model(seed: int) -> None:
    layout = interleave.layout_of(seed)
    run = interleave.run(interleave.schedule_of(seed, 60), layout, memory)
    if run.verdict.divergence is not None:
        small = interleave.shrunk(run, layout, memory)
        pytest.fail("\n".join([f"seed {seed}", *small.trace, str(small.verdict.divergence)]), pytrace=False)
    assert run.verdict.compared == run.verdict.commits > 20
    assert any(record.outcome == "conflict" for record in run.records), "nothing conflicted, so this run proved little"


def test_every_verb_commits_in_the_interleaved_ones() -> None:
    """These are the same on every machine; which calls of many processes win is up to how busy it is."""
    runs = (interleave.run(interleave.schedule_of(seed, 60), interleave.layout_of(seed), memory) for seed in range(6))
    assert {each.name for run in runs for each in run.records if each.outcome == "committed"} >= VERBS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("catalog", ["sqlite", "postgres"])
def test_eight_random_writers_equal_the_model(catalog: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db" if catalog == "sqlite" else request.getfixturevalue("postgres_uri")
    place, seed = Place(uri, f"file://{tmp_path}/warehouse"), 1 if catalog == "sqlite" else 2
    found = processes.history(place, interleave.layout_of(seed), seed, 40, tmp_path)
    print(f"{found.rate:.1f} commits/s", statistics(found.records, found.verdict), sep="\n")
    assert found.verdict.divergence is None, f"logs in {tmp_path}\n{found.verdict.divergence}"
    # Commits that share a snapshot are compared together.
    versions = {record.snapshot_id for record in found.records if record.makes_snapshot}
    assert found.verdict.compared == len(versions)
    assert found.verdict.commits > 60
    assert {record.name for record in found.records} >= VERBS
    assert len(VERBS & {record.name for record in found.records if record.outcome == "committed"}) > len(VERBS) / 2
    assert any(record.redone for record in found.records), "nothing was redone, so this proved little"
    assert any(record.outcome == "conflict" for record in found.records), "nothing conflicted, so this proved little"
