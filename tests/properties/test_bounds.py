"""Bounds that are cut short, as they are cut and as they are compared, at the edges of what texts and bytes can be."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, DoubleType, FloatType, NestedField, PrimitiveType, StringType

from frazil import expr
from frazil.expr import FileFacts, parse_filter
from frazil.format.statistics import _text_bounds, _upper_bytes, _upper_text
from frazil.model import Content, DataFile, Entry, Status
from frazil.read.plan import DeleteIndex
from unit.samples import metadata

EDGES = ["\x00", "a", "\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
texts = st.text(st.sampled_from(EDGES) | st.characters(exclude_categories=["Cs"]), max_size=6)
blobs = st.lists(st.sampled_from([0x00, 0x7F, 0x80, 0xFE, 0xFF]), max_size=6).map(bytes)
lengths = st.integers(1, 4)
LAST = "\U0010ffff"


@settings(max_examples=250)
@given(texts, texts, lengths)
@example("ab\ud7ffz", LAST, 3)
@example(LAST * 4, LAST, 3)
def test_no_text_that_begins_alike_exceeds_an_upper_bound(text: str, suffix: str, length: int) -> None:
    upper = _upper_text(text, length)
    if upper is None:
        assert text[:length] == LAST * length
        return
    assert len(upper) <= length
    assert text.encode() <= upper.encode()
    if len(text) > length:
        assert (text[:length] + suffix).encode() <= upper.encode()


@settings(max_examples=250)
@given(texts, texts, lengths)
def test_an_upper_bound_of_a_text_is_the_least_one(text: str, other: str, length: int) -> None:
    """No shorter text lies between a text and its bound."""
    upper = _upper_text(text, length)
    if upper is not None and len(text) > length:
        between = other[:length]
        assert not (text[:length].encode() < between.encode() < upper.encode()) or between.startswith(text[:length])


@settings(max_examples=250)
@given(blobs, blobs, lengths)
@example(b"\xff\xff\xff\xff", b"\xff", 3)
@example(b"\x00\xff\xff\xff", b"\xff", 3)
def test_no_bytes_that_begin_alike_exceed_an_upper_bound(data: bytes, suffix: bytes, length: int) -> None:
    upper = _upper_bytes(data, length)
    if upper is None:
        assert data[:length] == b"\xff" * length
        return
    assert len(upper) <= length
    assert data <= upper
    if len(data) > length:
        assert data[:length] + suffix <= upper


@given(st.binary(max_size=5), st.binary(max_size=5), lengths)
def test_bytes_that_are_no_text_have_no_bounds(low: bytes, high: bytes, length: int) -> None:
    lower, upper = _text_bounds(low, high, length)
    try:
        low.decode(), high.decode()
    except UnicodeDecodeError:
        assert (lower, upper) == (None, None)
        return
    assert lower is not None
    assert lower <= low
    assert upper is None or high <= upper


# Bounds and filters


def described(kind: PrimitiveType, values: list[Any], length: int | None = None) -> DataFile:
    """A file as the writer describes it: bounds without NaN, and cut short."""
    known = [each for each in values if each is not None and each == each]
    nans = sum(each is not None and each != each for each in values)
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    if known:
        order = (lambda each: each.encode()) if isinstance(kind, StringType) else None
        low, high = to_bytes(kind, min(known, key=order)), to_bytes(kind, max(known, key=order))
        cut: bytes | None = high
        if isinstance(kind, StringType):
            shortened, cut = _text_bounds(low, high, length)
            assert shortened is not None
            low = shortened
        elif isinstance(kind, BinaryType):
            low, cut = low[:length], _upper_bytes(high, length)
        lower = {1: low}
        upper = {} if cut is None else {1: cut}
    return DataFile(
        "f", len(values), 1, value_counts={1: len(values)}, null_value_counts={1: sum(each is None for each in values)},
        nan_value_counts={1: nans} if isinstance(kind, FloatType | DoubleType) else {},
        lower_bounds=lower, upper_bounds=upper,
    )  # fmt: skip


def may_match(kind: PrimitiveType, condition: str, file: DataFile) -> bool:
    schema = Schema(NestedField(1, "c", kind, required=False))
    where = parse_filter(condition, schema)
    return expr.may_match(where.may)(FileFacts(schema, where.field_ids, {}).of_file(file))


def must_match(kind: PrimitiveType, condition: str, file: DataFile) -> bool:
    schema = Schema(NestedField(1, "c", kind, required=False))
    where = parse_filter(condition, schema)
    return expr.must_match(where.must)(FileFacts(schema, where.field_ids, {}).of_file(file))


printable = st.text(st.sampled_from(["a", "b", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000", LAST]), max_size=5)


@settings(max_examples=200)
@given(st.lists(st.none() | printable, min_size=1, max_size=3), printable, lengths, st.sampled_from("=<>"))
def test_bounds_that_were_cut_lose_no_text_and_claim_none(
    values: list[str | None], text: str, length: int, operator: str
) -> None:
    def holds(value: str | None) -> bool:
        if value is None:
            return False
        one, other = value.encode(), text.encode()
        return {"=": one == other, "<": one < other, ">": one > other}[operator]

    file = described(StringType(), values, length)
    matches = [holds(each) for each in values]
    assert may_match(StringType(), f"c {operator} '{text}'", file) or not any(matches)
    assert all(matches) or not must_match(StringType(), f"c {operator} '{text}'", file)


FLOATS = [None, math.nan, -math.inf, -1.0, -0.0, 0.0, 5e-324, 1.0, math.inf]


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(FLOATS), min_size=1, max_size=3),
    st.sampled_from(["0.0", "-0.0", "1.0", "-1.0"]),
    st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
)
def test_zeros_of_both_signs_and_nan_fool_no_bound(values: list[float | None], constant: str, operator: str) -> None:
    """SQL: the zeros are equal, and NaN is above everything else."""
    schema = Schema(NestedField(1, "c", DoubleType(), required=False))
    where = parse_filter(f"c {operator} {constant}", schema)
    matches = where.mask(pa.table({"c": pa.array(values, pa.float64())})).to_pylist()
    number = float(constant)
    assert matches == [each is not None and _compared(each, operator, number) for each in values]
    file = described(DoubleType(), values)
    assert may_match(DoubleType(), where.text, file) or not any(matches)
    assert all(matches) or not must_match(DoubleType(), where.text, file)


def _compared(value: float, operator: str, constant: float) -> bool:
    if math.isnan(value):
        return operator in ("<>", ">", ">=")
    return {
        "=": value == constant,
        "<>": value != constant,
        "<": value < constant,
        "<=": value <= constant,
        ">": value > constant,
        ">=": value >= constant,
    }[operator]


# Bounds of two files that may have a key in common

KEYS: list[tuple[str, PrimitiveType, Any]] = [
    ("string", StringType(), st.none() | printable),
    ("binary", BinaryType(), st.none() | blobs),
    ("double", DoubleType(), st.sampled_from(FLOATS)),
    ("float", FloatType(), st.sampled_from([None, math.nan, -0.0, 0.0, 1.5])),
]


@settings(max_examples=800)
@given(st.data(), st.sampled_from(KEYS), lengths, lengths)
def test_a_delete_by_key_that_hits_a_row_is_never_left_out(
    data: st.DataObject, key: tuple[str, PrimitiveType, Any], one: int, other: int
) -> None:
    name, kind, values = key
    mine = data.draw(st.lists(values, min_size=1, max_size=3))
    keys = data.draw(st.lists(values, min_size=1, max_size=2))
    rows = described(kind, mine, one)
    found = described(kind, keys, other)
    deletes = DataFile(
        "d", len(keys), 1, content=Content.EQUALITY_DELETES, equality_ids=(1,), value_counts=found.value_counts,
        null_value_counts=found.null_value_counts, nan_value_counts=found.nan_value_counts,
        lower_bounds=found.lower_bounds, upper_bounds=found.upper_bounds,
    )  # fmt: skip
    fields = [{"id": 1, "name": "c", "type": name, "required": False}]
    head = metadata(schemas=[{"type": "struct", "schema-id": 0, "fields": fields}])
    index = DeleteIndex([Entry(Status.ADDED, deletes, 2, 2, 2)], head)
    if {_same(each) for each in mine} & {_same(each) for each in keys}:
        assert index.applying_to(rows, 1)
    assert index.applying_to(rows, 2) == (), "a delete by key reaches older files only"


def _same(value: Any) -> Any:
    """NULL is NULL here, NaN is NaN, and the zeros are one."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack(">d", value + 0.0)
    return value
