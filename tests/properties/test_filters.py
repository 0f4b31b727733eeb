"""Filters that outlive the schema they were written for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, IntegerType, LongType, NestedField, StringType

from frazil.errors import InvalidInput
from frazil.expr import parse_filter

NAMES = ("a", "b", "c")
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | st.integers(-3, 3) for name in NAMES}), min_size=1, max_size=6)
LEAVES = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from(NAMES), st.sampled_from(["=", "<>", "<", ">="]), st.integers(-3, 3)),
    st.builds("{} is null".format, st.sampled_from(NAMES)),
    st.builds("{} < {}".format, st.sampled_from(NAMES), st.sampled_from(NAMES)),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda parts: (
        st.builds("({} {} {})".format, parts, st.sampled_from(["and", "or"]), parts)
        | st.builds("not ({})".format, parts)
    ),
    max_leaves=4,
)


def schema(names: tuple[str, ...], kinds: tuple[IcebergType, ...] = (IntegerType(),) * 3, schema_id: int = 0) -> Schema:
    fields = [
        NestedField(at, name, kind, required=False) for at, (name, kind) in enumerate(zip(names, kinds, strict=True), 1)
    ]
    return Schema(*fields, schema_id=schema_id)


def table(rows: list[dict[str, Any]], of: Schema) -> pa.Table:
    """The same values under the names that the columns have in this schema, in another order of the columns."""
    arrow = schema_to_pyarrow(of)
    arrays = {
        field.name: pa.array([row[NAMES[field.field_id - 1]] for row in rows], arrow.field(field.name).type)
        for field in reversed(of.fields)
    }
    return pa.table(arrays)


@settings(max_examples=150)
@given(CONDITIONS, ROWS, st.permutations(["a", "b", "c", "d"]), st.lists(st.booleans(), min_size=3, max_size=3))
def test_p16_a_filter_selects_the_same_rows_whatever_columns_are_called_or_how_wide_they_became(
    condition: str, rows: list[dict[str, Any]], names: list[str], widened: list[bool]
) -> None:
    before = schema(NAMES)
    kinds = tuple(LongType() if wide else IntegerType() for wide in widened)
    after = schema(tuple(names[:3]), kinds, schema_id=1)
    where = parse_filter(condition, before)
    wanted = where.mask(table(rows, before)).to_pylist()
    assert where.rebound(after).mask(table(rows, after)).to_pylist() == wanted
    # And once more, back to the old names.
    again = schema(NAMES, kinds, schema_id=2)
    assert where.rebound(after).rebound(again).mask(table(rows, again)).to_pylist() == wanted


@settings(max_examples=100)
@given(CONDITIONS, st.integers(0, 2))
def test_p16_a_filter_whose_column_is_gone_or_another_one_is_refused(condition: str, which: int) -> None:
    """Also if another column has got the name."""
    where = parse_filter(condition, schema(NAMES))
    left = [field for field in schema(NAMES).fields if field.field_id != which + 1]
    replaced = Schema(*left, NestedField(9, NAMES[which], IntegerType(), required=False), schema_id=1)
    kinds: list[IcebergType] = [IntegerType()] * 3
    kinds[which] = StringType()
    retyped = schema(NAMES, tuple(kinds), schema_id=1)
    for other in (replaced, retyped):
        if which + 1 in where.field_ids:
            with pytest.raises(InvalidInput):
                where.rebound(other)
        else:
            assert where.rebound(other).field_ids == where.field_ids


@settings(max_examples=150)
@given(CONDITIONS, ROWS)
def test_a_filter_that_is_read_again_from_its_text_is_the_same(condition: str, rows: list[dict[str, Any]]) -> None:
    """Deletes keep their condition as text for concurrent appends (P23)."""
    first = parse_filter(condition, schema(NAMES))
    again = parse_filter(first.text, schema(NAMES))
    assert again.mask(table(rows, schema(NAMES))).to_pylist() == first.mask(table(rows, schema(NAMES))).to_pylist()
    assert again.field_ids == first.field_ids
