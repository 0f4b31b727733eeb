"""Reading a version of a table after an earlier one: the same as reading it alone, whatever the file looks like."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from frazil.errors import CorruptMetadata
from frazil.format.metadata import TableMetadata

MANY = 300


def snapshot(number: int) -> dict[str, Any]:
    summary = {"operation": "append", "note": 'a "snapshots":[ in a text, and its end ]}', "ü": "é"}
    return {"snapshot-id": number, "sequence-number": number, "timestamp-ms": number, "summary": summary}


def version(count: int, first: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "format-version": 2,
        "table-uuid": "u",
        "location": "file:///w/t",
        "last-updated-ms": 1,
        "last-column-id": 1,
        "properties": {"text": '"snapshots":['},
        "snapshots": [snapshot(number) for number in range(first, count)],
        "refs": {"main": {"snapshot-id": count - 1, "type": "branch"}},
        **more,
    }


def ours(raw: dict[str, Any]) -> bytes:
    return TableMetadata(raw).to_json()


def read(data: bytes, before: TableMetadata | None = None) -> TableMetadata:
    return TableMetadata.parse(data, "file", before)


BEFORE = read(ours(version(MANY)))


def test_only_the_new_snapshots_are_parsed() -> None:
    after = read(ours(version(MANY + 3)), BEFORE)
    assert after.raw == version(MANY + 3)
    assert after.raw["snapshots"][5] is BEFORE.raw["snapshots"][5], "an old one is the same object"
    assert read(ours(version(MANY + 9)), after).raw == version(MANY + 9)


@pytest.mark.parametrize(
    "later",
    [
        version(MANY),
        version(MANY + 5, first=100),
        version(MANY - 1),
        version(0),
        version(5),
        {**version(MANY + 1), "snapshots": [*version(MANY)["snapshots"][:-1], snapshot(9_999)]},
        {key: value for key, value in version(MANY).items() if key != "snapshots"},
        version(MANY + 1, extra={"snapshots": [1, 2]}),
    ],
    ids=["the same", "the oldest expired", "rolled back", "none", "few", "another last one", "no list", "a namesake"],
)
@pytest.mark.parametrize("form", [ours, lambda raw: json.dumps(raw).encode(), lambda raw: gzip.compress(ours(raw))])
def test_what_differs_is_read_as_it_is(later: dict[str, Any], form: Any) -> None:
    found = read(form(later), BEFORE)
    assert {"snapshots": [], **found.raw} == {"snapshots": [], **later}
    assert {"snapshots": [], **read(form(later)).raw} == {"snapshots": [], **later}


def test_keys_after_the_snapshots_are_read() -> None:
    data = ours(version(MANY + 2))[:-1] + b',"last-sequence-number":77}'
    assert read(data, BEFORE).last_sequence_number == 77


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_torn_file_is_an_error(cut: int) -> None:
    with pytest.raises(CorruptMetadata):
        read(ours(version(MANY + 2))[:-cut], BEFORE)


def test_snapshots_are_found_wherever_they_are() -> None:
    for number in (0, 1, MANY // 2, MANY - 1):
        assert BEFORE.has_snapshot(number)
        found = BEFORE.snapshot(number)
        assert found is not None
        assert found.sequence_number == number
    assert not BEFORE.has_snapshot(MANY)
    assert not read(ours(version(3))).has_snapshot(3)
