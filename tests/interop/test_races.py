"""Many processes append to one table at once; every engine must then find every acknowledged batch exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from pyiceberg.table import Table

from frazil.commit.group import GROUP_SIZE
from interop.conftest import Place
from interop.race import BATCHES, Writers, is_ours, local_path, race, unreferenced

pytestmark = pytest.mark.interop

BATCHES_EACH = 20
TABLE = "shop.events"

# For the writers that are not Frazil's: with the defaults, half of their commits fail among thirty writers.
PATIENCE = {
    "commit.retry.num-retries": "12",
    "commit.retry.min-wait-ms": "100",
    "commit.retry.max-wait-ms": "3000",
}


def _prepared(place: Place) -> None:
    with place.lake() as lake:
        lake.create_namespace("shop")
        lake.create_table(TABLE, BATCHES, properties=PATIENCE)


def _frazil_writers(place: Place, numbers: Iterable[int]) -> Writers:
    request = {"uri": place.frazil_uri, "warehouse": place.warehouse, "table": TABLE, "count": BATCHES_EACH}
    return Writers("frazil", tuple(numbers), request)


def _pyiceberg_writers(place: Place, numbers: Iterable[int]) -> Writers:
    request = {
        "uri": place.pyiceberg_uri,
        "name": "frazil",
        "warehouse": place.warehouse,
        "table": TABLE,
        "count": BATCHES_EACH,
        # At 600 snapshots one attempt costs PyIceberg half a second of CPU, and most of ten at once would be lost.
        "at_once": 2,
    }
    return Writers("pyiceberg", tuple(numbers), request)


def _java_writers(place: Place, numbers: Iterable[int]) -> list[Writers]:
    request = {"catalog": place.java_options, "table": TABLE, "count": BATCHES_EACH}
    return [Writers("java", (number,), request) for number in numbers]


def _batches(rows: Iterable[dict[str, Any]]) -> Counter[tuple[int, int]]:
    return Counter((row["writer"], row["seq"]) for row in rows)


def _check_every_engine_reads_each_batch_once(place: Place, writers: int) -> Table:
    expected = Counter({(writer, seq): 1 for writer in range(writers) for seq in range(BATCHES_EACH)})
    with place.lake() as lake:
        assert _batches(lake.table(TABLE).scan().to_arrow().to_pylist()) == expected
    table = place.pyiceberg().load_table(TABLE)
    assert _batches(table.scan().to_arrow().to_pylist()) == expected
    java = place.iceberg_java().table(TABLE)
    assert _batches(java.rows()) == expected
    snapshots = java.metadata()["snapshots"]
    assert sorted(s["sequence_number"] for s in snapshots) == list(range(1, len(snapshots) + 1))
    # Commits of Frazil that met share a snapshot; everybody else has one of its own.
    commits = [
        int((each.summary.additional_properties if each.summary else {}).get(GROUP_SIZE, "1"))
        for each in table.snapshots()
    ]
    assert (len(commits), sum(commits)) == (len(snapshots), len(expected))
    return table


@pytest.mark.timeout(900)
def test_thirty_frazil_processes_lose_no_batch_and_leave_no_file(place: Place) -> None:
    _prepared(place)
    said = race([_frazil_writers(place, range(30))], place.folder)
    assert Counter(each["outcome"] for each in said) == {"acknowledged": 30 * BATCHES_EACH}
    table = _check_every_engine_reads_each_batch_once(place, 30)
    assert unreferenced(table) == set()


@pytest.mark.timeout(900)
def test_frazil_pyiceberg_and_java_writers_share_a_table_and_lose_no_batch(place: Place) -> None:
    _prepared(place)
    groups = [
        _frazil_writers(place, range(10)),
        _pyiceberg_writers(place, range(10, 20)),
        *_java_writers(place, range(20, 30)),
    ]
    said = race(groups, place.folder)
    assert Counter(each["outcome"] for each in said) == {"acknowledged": 30 * BATCHES_EACH}
    table = _check_every_engine_reads_each_batch_once(place, 30)
    assert {path for path in unreferenced(table) if is_ours(path)} == set()
    ours = [task.file.file_path for task in table.scan().plan_files() if is_ours(local_path(task.file.file_path))]
    assert len(ours) == 10 * BATCHES_EACH, "the permissions must tell whose file is whose, or the check above is empty"
