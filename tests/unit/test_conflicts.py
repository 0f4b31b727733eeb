"""Conflict rules as rows: mine × head → verdict, both verdicts for each rule."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.commit.conflicts import REQUIRED, Check, conflicts
from frazil.commit.operations import Append, MetadataChange, PropertyChange
from unit.samples import FIELDS, metadata, snapshot

UUID = metadata().uuid
REQUIRED_COLUMN = {"id": 3, "name": "must", "type": "int", "required": True}
OPTIONAL_COLUMN = {"id": 3, "name": "may", "type": "int", "required": False}


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"schemas": [{"type": "struct", "schema-id": 0, "fields": list(fields)}]}


def append(**changes: Any) -> Append:
    values: dict[str, Any] = {
        "table_uuid": UUID,
        "files": (),
        "schema_id": 0,
        "spec_id": 0,
        "written_ids": {1: "id", 2: "name"},
    }
    return Append(**{**values, **changes})


RENAMED = [FIELDS[0], {**FIELDS[1], "name": "title"}]

ROWS = [
    ("append × same head", append(), metadata(), None),
    ("append × dropped and recreated", append(table_uuid="other"), metadata(), Check.SAME_TABLE),
    ("change × same table", MetadataChange(UUID, PropertyChange()), metadata(), None),
    ("change × dropped and recreated", MetadataChange("other", PropertyChange()), metadata(), Check.SAME_TABLE),
    ("append × column added", append(), metadata(**schema(*FIELDS, OPTIONAL_COLUMN)), None),
    ("append × required column added", append(), metadata(**schema(*FIELDS, REQUIRED_COLUMN)), Check.SCHEMA_COMPATIBLE),
    ("append × my column dropped", append(), metadata(**schema(FIELDS[0])), Check.SCHEMA_COMPATIBLE),
    ("append × my column renamed", append(), metadata(**schema(*RENAMED)), None),
    ("append × my spec no longer default", append(spec_id=0), metadata(default_spec_id=0), None),
    ("append × my spec not listed", append(spec_id=4), metadata(), Check.SPEC_LISTED),
    ("append to main × empty table", append(branch="main"), metadata(), None),
    (
        "append to a branch × it exists",
        append(branch="b"),
        metadata(snapshots=[snapshot(1)], refs={"b": {"snapshot-id": 1, "type": "branch"}}),
        None,
    ),
    ("append to a branch × it is gone", append(branch="b"), metadata(), Check.BRANCH_EXISTS),
]


@pytest.mark.parametrize(("mine", "head", "verdict"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_verdict(mine: Any, head: Any, verdict: Check | None) -> None:
    found = conflicts(mine, head)
    assert [each.check for each in found] == ([] if verdict is None else [verdict])
    assert all(each.detail and each.advice for each in found)


def test_every_check_has_a_row_for_both_verdicts() -> None:
    refusing = {row[3] for row in ROWS if row[3] is not None}
    assert refusing == {check for checks in REQUIRED.values() for check in checks}
