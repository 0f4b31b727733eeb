"""Changes as the bytes that SQL catalogs keep."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import struct
import uuid
import zlib
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.catalog.base import ChangeRecord
from frazil.commit import summaries
from frazil.commit.summaries import MOST_BYTES, MOST_FILES, decode, encode, from_records, to_record
from frazil.model import Change, Content, DataFile, Entry, Origin, Predicate, SharedCommit, Status

LEFT_OUT: dict[str, Any] = {"column_sizes": {}, "split_offsets": (), "key_metadata": None, "sort_order_id": None}

longs = st.integers(-(2**63), 2**63 - 1)
counts = st.dictionaries(st.integers(1, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=3)
bounds = st.dictionaries(st.integers(1, 2**31 - 1), st.binary(max_size=20), max_size=3)
texts = st.text(max_size=20)
values = st.one_of(
    st.none(),
    st.booleans(),
    longs,
    st.integers(),
    st.floats(),
    texts,
    st.decimals(),
    st.uuids(),
    st.binary(max_size=20),
)
files = st.builds(
    DataFile,
    file_path=texts,
    record_count=st.integers(0, 2**63 - 1),
    file_size_in_bytes=st.integers(0, 2**63 - 1),
    spec_id=st.integers(0, 2**31 - 1),
    partition=st.lists(values, max_size=3).map(tuple),
    content=st.sampled_from(Content),
    file_format=st.sampled_from(["PARQUET", "ORC", "AVRO"]),
    value_counts=counts,
    null_value_counts=counts,
    nan_value_counts=counts,
    lower_bounds=bounds,
    upper_bounds=bounds,
    equality_ids=st.lists(st.integers(1, 100), max_size=3).map(tuple),
    referenced_data_file=st.none() | texts,
)
several = st.lists(files, max_size=3).map(tuple)
origins = st.builds(Origin, texts, texts, texts, st.integers(0, 2**62))
shared = st.builds(SharedCommit, texts, st.integers(0, 2**62), st.integers(0, 2**31), st.none() | origins)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    snapshot_id, number = draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 2**62))

    def entries() -> tuple[Entry, ...]:
        ages = st.just(number) | st.integers(0, number)
        return tuple(Entry(Status.ADDED, file, snapshot_id, draw(ages), number) for file in draw(several))

    return Change(
        snapshot_id=snapshot_id,
        sequence_number=number,
        operation=draw(st.sampled_from(["append", "overwrite", "delete", "replace"])),
        added=entries(),
        removed=draw(several),
        deletes=entries(),
        removed_deletes=draw(several),
        is_delete=draw(st.booleans()),
        lineage_path=draw(st.none() | texts),
        predicate=draw(st.none() | st.builds(Predicate, texts, st.integers(0, 1000), st.booleans())),
        commits=draw(st.lists(shared, max_size=3).map(tuple)),
        committed_ms=draw(st.none() | st.integers(0, 2**62)),
    )


def plain(value: Any) -> Any:
    """Something that equals another exactly when both are the same, kinds of numbers and NaN included."""
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return ("float", "nan") if math.isnan(value) else ("float", struct.pack(">d", value))
    if isinstance(value, Decimal):
        return "decimal", value.as_tuple()
    return type(value).__name__, value


@given(changes())
@settings(deadline=None)
def test_a_change_comes_back_as_it_was(change: Change) -> None:
    body = encode(change)
    assert body is not None
    found = decode(body)
    assert found is not None
    assert plain(found) == plain(change)


@given(changes(), st.data())
@settings(deadline=None)
def test_a_damaged_body_is_no_change_at_all(change: Change, data: st.DataObject) -> None:
    body = bytearray(encode(change) or b"")
    where = data.draw(st.integers(0, len(body) - 1))
    body[where] ^= data.draw(st.integers(1, 255))
    assert decode(bytes(body)) is None
    assert decode(bytes(body[:where])) is None


@given(st.binary(max_size=100))
@settings(deadline=None)
def test_other_bytes_are_no_change(body: bytes) -> None:
    assert decode(body) is None
    header = struct.pack(">BBI", 1, 0, zlib.crc32(body))
    assert decode(header + body) is None


@pytest.mark.parametrize("raw", [{}, [], None, {"id": 1}, {"id": 1, "seq": 1, "op": "append", "added": 3}, "text"])
def test_a_body_with_other_contents_is_no_change(raw: Any) -> None:
    data = orjson.dumps(raw)
    assert decode(struct.pack(">BBI", 1, 0, zlib.crc32(data)) + data) is None


def appended(paths: int = 1, **changes: Any) -> Change:
    entries = tuple(Entry(Status.ADDED, DataFile(f"data/{n}.parquet", 10, 100), 7, 3, 3) for n in range(paths))
    return dataclasses.replace(Change(7, 3, "append", added=entries), **changes)


def test_a_later_version_is_ignored() -> None:
    body = encode(appended()) or b""
    assert body[0] == 1
    assert decode(bytes([2]) + body[1:]) is None


def test_what_no_check_looks_at_is_left_out() -> None:
    rich = DataFile(
        "f", 1, 1, column_sizes={1: 9}, split_offsets=(4,), key_metadata=b"k", sort_order_id=3, value_counts={1: 1}
    )
    found = decode(encode(Change(7, 3, "append", removed=(rich,))) or b"")
    assert found is not None
    assert plain(found.removed[0]) == plain(dataclasses.replace(rich, **LEFT_OUT))


def test_an_inherited_sequence_number_is_the_snapshots_own() -> None:
    found = decode(encode(Change(7, 3, "append", added=(Entry(Status.ADDED, DataFile("f", 1, 1)),))) or b"")
    assert found is not None
    entry = found.added[0]
    assert (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number) == (7, 3, 3)


def test_a_small_change_is_small() -> None:
    assert len(encode(appended()) or b"") < 250
    assert len(encode(appended(MOST_FILES)) or b"") < 2_000


def test_too_many_files_are_left_to_the_manifests() -> None:
    assert encode(appended(MOST_FILES)) is not None
    assert encode(appended(MOST_FILES + 1)) is None


def test_too_many_bytes_are_left_to_the_manifests() -> None:
    noise = b"".join(uuid.uuid4().bytes for _ in range(MOST_BYTES // 16))
    assert encode(appended(removed=(DataFile("f", 1, 1, lower_bounds={1: noise}),))) is None


def test_p23_a_predicate_is_kept_even_where_the_files_are_not() -> None:
    predicate = Predicate("user_id = 7", 0)
    large = to_record("uuid", appended(MOST_FILES + 1, predicate=predicate))
    assert large is not None
    assert decode(large.body) is None
    assert from_records([large]) == {7: predicate}


@pytest.mark.parametrize("value", [dt.date(2026, 1, 1), object(), "\udcff", [1]])
def test_a_value_that_has_no_form_is_left_to_the_manifests(value: Any) -> None:
    assert encode(appended(removed=(DataFile("f", 1, 1, partition=(value,)),))) is None


def test_records_of_other_snapshots_and_damaged_ones_are_ignored() -> None:
    good = to_record("uuid", appended())
    assert good is not None
    records = [
        good,
        dataclasses.replace(good, snapshot_id=8),
        dataclasses.replace(good, snapshot_id=9, body=b""),
        ChangeRecord("uuid", 10, 3, b"\x01\x00garbage"),
    ]
    assert {key: plain(value) for key, value in from_records(records).items()} == {7: plain(appended())}
    assert from_records([dataclasses.replace(good, sequence_number=4)]) == {}


def test_compressed_bodies_do_not_swell_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "_MOST_INFLATED", 1_000)
    body = encode(appended(MOST_FILES)) or b""
    assert body[1] == 1
    assert decode(body) is None


# Beside earlier versions


def test_a_record_of_an_earlier_version_has_commits_without_an_origin() -> None:
    body = encode(Change(7, 3, "append", commits=(SharedCommit("c", 1, 2, Origin("app", "h", "append", 5)),)))
    assert body is not None
    raw = orjson.loads(body[6:])
    assert raw["commits"] == [["c", 1, 2]], "they read exactly three values of each commit"
    for gone in ("origins", "at"):
        del raw[gone]
    data = orjson.dumps(raw)
    earlier = struct.pack(">BBI", 1, 0, zlib.crc32(data)) + data
    found = decode(earlier)
    assert found is not None
    assert (found.commits, found.committed_ms) == ((SharedCommit("c", 1, 2),), None)


@pytest.mark.parametrize("odd", [None, 7, "x", [], ["app"], ["app", "host", "verb", "late"], [None] * 4])
def test_an_origin_of_another_form_is_unknown(odd: Any) -> None:
    assert summaries.origin_from_json(odd) is None


def test_an_origin_of_a_later_version_may_have_more_values() -> None:
    assert summaries.origin_from_json(["app", "h", "merge", 5, "new"]) == Origin("app", "h", "merge", 5)
