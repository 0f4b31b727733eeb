"""Which snapshots and refs expire: the rules of Iceberg Java's RemoveSnapshots, each as a row."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.errors import CorruptMetadata, InvalidInput
from frazil.format.metadata import TableMetadata
from frazil.format.retention import Expired, expired
from unit.samples import metadata, snapshot, with_snapshots

DAY = 24 * 60 * 60 * 1000
NOW = 100 * DAY
AGE = "history.expire.max-snapshot-age-ms"
COUNT = "history.expire.min-snapshots-to-keep"
REF_AGE = "history.expire.max-ref-age-ms"


def table(refs: dict[str, Any] | None = None, properties: dict[str, str] | None = None) -> TableMetadata:
    """Snapshots 1 to 6 of main, 10 days to now old, two days apart; 7 is a day old and 8 is nine, both on 2."""
    ages = {1: 10, 2: 8, 3: 6, 4: 4, 5: 2, 6: 0, 7: 1, 8: 9}
    parents = {1: None, 7: 2, 8: 2}
    snapshots = [
        {**snapshot(each, parents.get(each, each - 1)), "timestamp-ms": NOW - age * DAY} for each, age in ages.items()
    ]
    made = with_snapshots(*snapshots, main=6, properties=properties or {})
    main = {"main": {"snapshot-id": 6, "type": "branch"}}
    return TableMetadata({**made.raw, "refs": main | (refs or {})})


def branch(snapshot_id: int, **rules: int) -> dict[str, Any]:
    return {"snapshot-id": snapshot_id, "type": "branch", **{key.replace("_", "-"): n for key, n in rules.items()}}


def tag(snapshot_id: int, **rules: int) -> dict[str, Any]:
    return branch(snapshot_id, **rules) | {"type": "tag"}


def before(days: int) -> dict[str, int]:
    return {"older_than_ms": NOW - days * DAY}


ROWS: list[tuple[str, TableMetadata, dict[str, int], list[int], list[str]]] = [
    ("five days and one by default", table(), {}, [1, 2, 3, 8], []),
    ("older than", table(), before(7), [1, 2, 8], []),
    ("as old as the limit stays", table(), before(8), [1, 8], []),
    ("the last ones stay, however old", table(), {**before(0), "retain_last": 4}, [1, 2, 7, 8], []),
    ("both: the more is kept", table(), {**before(7), "retain_last": 2}, [1, 2, 8], []),
    ("the head of a branch always stays", table(), before(-1), [1, 2, 3, 4, 5, 7, 8], []),
    ("more than there are", table(), {**before(-1), "retain_last": 99}, [7, 8], []),
    ("the table's age", table(properties={AGE: str(3 * DAY)}), {}, [1, 2, 3, 4, 8], []),
    ("the table's count", table(properties={COUNT: "5"}), {}, [1, 8], []),
    ("an argument wins over a property", table(properties={COUNT: "5"}), {"retain_last": 1}, [1, 2, 3, 8], []),
    ("a tag keeps its snapshot alone", table({"t": tag(2)}), {}, [1, 3, 8], []),
    ("a branch keeps its own last ones", table({"b": branch(8)}), {}, [1, 2, 3], []),
    ("a branch's own count wins", table({"b": branch(8, min_snapshots_to_keep=2)}), {"retain_last": 1}, [1, 3], []),
    ("a branch's own age wins", table({"b": branch(8, max_snapshot_age_ms=9 * DAY)}), {}, [1, 3], []),
    (
        "a branch's own age wins over older_than",
        table({"main": branch(6, max_snapshot_age_ms=3 * DAY)}),
        {"older_than_ms": 0},
        [1, 2, 3, 4],
        [],
    ),
    ("what two branches have stays for one", table({"b": branch(3, min_snapshots_to_keep=3)}), {}, [8], []),
    ("a ref that is too old goes", table({"t": tag(2, max_ref_age_ms=7 * DAY)}), {}, [1, 2, 3, 8], ["t"]),
    ("a ref as old as allowed stays", table({"t": tag(2, max_ref_age_ms=8 * DAY)}), {}, [1, 3, 8], []),
    (
        "the table's age of refs",
        table({"t": tag(2), "b": branch(5)}, properties={REF_AGE: str(7 * DAY)}),
        {},
        [1, 2, 3, 8],
        ["t"],
    ),
    ("main never goes", table({"main": branch(3, max_ref_age_ms=1)}), {}, [1, 2, 8], []),
    (
        "what only an expired branch named goes by age alone",
        table({"b": branch(8, max_ref_age_ms=DAY), "c": branch(7, max_ref_age_ms=1)}),
        {},
        [1, 2, 3, 8],
        ["b", "c"],
    ),
    ("young ones that nothing names stay", table(), before(3), [1, 2, 3, 4, 8], []),
    ("nothing", table(), {"older_than_ms": 0}, [], []),
]


@pytest.mark.parametrize(
    ("given", "asked", "snapshots", "refs"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_what_expires(given: TableMetadata, asked: dict[str, int], snapshots: list[int], refs: list[str]) -> None:
    found = expired(given, NOW, older_than_ms=asked.get("older_than_ms"), retain_last=asked.get("retain_last"))
    assert (sorted(found.snapshot_ids), sorted(found.refs)) == (snapshots, refs)
    left = {name: ref for name, ref in given.refs.items() if name not in found.refs}
    assert not {ref["snapshot-id"] for ref in left.values()} & set(found.snapshot_ids)


def test_an_empty_table_has_nothing_that_expires() -> None:
    assert expired(metadata(), NOW) == Expired()


@pytest.mark.parametrize("key", [AGE, COUNT])
def test_a_rule_that_cannot_be_read_keeps_everything(key: str) -> None:
    with pytest.raises(InvalidInput, match=f"{key} must be a whole number, not 'soon'"):
        expired(table(properties={key: "soon"}), NOW)


def test_a_table_that_shares_files_does_not_expire() -> None:
    with pytest.raises(InvalidInput, match="belong to other tables"):
        expired(table(properties={"gc.enabled": "false"}), NOW)


def test_a_branch_that_leads_nowhere_does_not_make_everything_expire() -> None:
    with pytest.raises(CorruptMetadata, match="'main' refers to a snapshot that no longer exists"):
        expired(table({"main": branch(99)}), NOW)
