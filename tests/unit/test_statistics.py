"""Column statistics: a bound that is too tight loses rows, so every value must lie within its file's bounds."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from frazil.format.schemas import arrow_schema, to_schema
from frazil.format.statistics import FileStatistics, Observed, file_statistics, observe, plan
from frazil.stage.rows import conform, to_reader


def collected(
    schema: Schema, rows: pa.Table, properties: Mapping[str, str] | None = None, row_group_size: int = 1000
) -> FileStatistics:
    """The statistics of a real Parquet file with these rows."""
    made = plan(schema, properties or {})
    observed = Observed()
    observe(made, rows, observed)
    footers: list[Any] = []
    out = pa.BufferOutputStream()
    options: dict[str, Any] = {"store_decimal_as_integer": True, "metadata_collector": footers}
    with pq.ParquetWriter(out, rows.schema, **options) as writer:
        writer.write_table(rows, row_group_size=row_group_size)
    return file_statistics(footers[0], made, observed)


def one_column(
    kind: str, values: Sequence[Any], mode: str = "truncate(16)", row_group_size: int = 1000
) -> tuple[FileStatistics, PrimitiveType]:
    schema = to_schema(f"c {kind}")
    target = arrow_schema(schema)
    column = pa.array(values, target.field("c").type) if not isinstance(values, pa.Array) else values
    found = collected(
        schema, pa.table([column], schema=target), {"write.metadata.metrics.default": mode}, row_group_size
    )
    primitive = schema.find_type("c")
    assert isinstance(primitive, PrimitiveType)
    return found, primitive


def bounds(kind: str, values: Sequence[Any], mode: str = "truncate(16)", row_group_size: int = 1000) -> tuple[Any, Any]:
    found, primitive = one_column(kind, values, mode, row_group_size)
    lower, upper = found.lower_bounds.get(1), found.upper_bounds.get(1)
    return (
        None if lower is None else from_bytes(primitive, lower),
        None if upper is None else from_bytes(primitive, upper),
    )


def numbers(kind: pa.DataType, values: Sequence[int | None]) -> Any:
    """Days, micros and the like by their numbers: Python's calendar ends long before Iceberg's."""
    plain = pa.int32() if kind == pa.date32() else pa.int64()
    return pa.array(values, plain).cast(kind)


# Exact bounds

LOW = Decimal(f"-{10**27}.0000000001")


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("boolean", [True, None, True], (True, True)),
        ("int", [-5, None, 7], (-5, 7)),
        ("bigint", [-(2**63), 2**63 - 1], (-(2**63), 2**63 - 1)),
        ("double", [1.5, -2.5, float("nan")], (-2.5, 1.5)),
        ("float", [0.5, None], (0.5, 0.5)),
        ("decimal(9,2)", [Decimal("-1.28"), Decimal("9999999.99")], (Decimal("-1.28"), Decimal("9999999.99"))),
        ("decimal(18,2)", [Decimal("-327.69"), Decimal("0.00")], (Decimal("-327.69"), Decimal("0.00"))),
        ("decimal(38,10)", [LOW, Decimal("1E-10")], (LOW, Decimal("1E-10"))),
        ("string", ["", "b", None], ("", "b")),
        ("binary", [b"", b"\xff"], (b"", b"\xff")),
        ("fixed(2)", [b"\x00\xff", b"\xff\x00"], (b"\x00\xff", b"\xff\x00")),
        ("date", numbers(pa.date32(), [-800_000, 2**31 - 1]), (-800_000, 2**31 - 1)),
        ("time", numbers(pa.time64("us"), [0, 86_399_999_999]), (0, 86_399_999_999)),
        ("timestamp_ntz", numbers(pa.timestamp("us"), [-(2**62), 2**62]), (-(2**62), 2**62)),
        ("timestamp", numbers(pa.timestamp("us", "UTC"), [-1, None]), (-1, -1)),
    ],
)
def test_bounds_of_every_type(kind: str, values: Sequence[Any], expected: tuple[Any, Any]) -> None:
    assert bounds(kind, values) == expected
    assert bounds(kind, values, row_group_size=1) == expected


@pytest.mark.parametrize("kind", ["int", "string", "binary", "uuid", "decimal(20,2)", "double", "boolean", "fixed(3)"])
def test_a_column_of_nulls_has_counts_and_no_bounds(kind: str) -> None:
    found, _ = one_column(kind, [None, None])
    assert found.value_counts == {1: 2}
    assert found.null_value_counts == {1: 2}
    assert found.lower_bounds == found.upper_bounds == {}


def test_zero_bounds_hold_whatever_the_sign() -> None:
    lower, upper = bounds("double", [0.0, -0.0])
    assert math.copysign(1, lower) == -1
    assert math.copysign(1, upper) == 1


def test_nans_are_counted_and_are_in_no_bound() -> None:
    found, _ = one_column("double", [float("nan"), 1.0, None, float("nan")], row_group_size=1)
    assert found.nan_value_counts == {1: 2}
    assert bounds("double", [float("nan"), 1.0, None], row_group_size=1) == (1.0, 1.0)
    found, _ = one_column("float", [float("nan")])
    assert found.nan_value_counts == {1: 1}
    assert found.lower_bounds == {}


# Cut bounds


@pytest.mark.parametrize(
    ("text", "upper"),
    [
        ("abcd", "abd"),
        ("ab\x7fd", "ab\x80"),
        ("äöüß", "äöý"),
        ("ab\U0010ffffd", "ac"),
        ("a\U0010ffff\U0010ffffd", "b"),
        ("\U0010ffff\U0010ffff\U0010ffffd", None),
        ("ab\ud7ffd", "ab\ue000"),
        ("ab\uffffd", "ab\U00010000"),
        ("𝄞𝄞𝄞𝄞", "𝄞𝄞𝄟"),
        ("abc", "abc"),
    ],
)
def test_a_cut_upper_bound_of_text_is_raised_by_one_code_point(text: str, upper: str | None) -> None:
    assert bounds("string", [text], "truncate(3)") == (text[:3], upper)
    assert bounds("string", [text], "full") == (text, text)


@pytest.mark.parametrize(
    ("data", "upper"),
    [(b"abcd", b"abd"), (b"a\xff\xffd", b"b"), (b"\xff\xff\xff\xff", None), (b"\xff\xff\xff", b"\xff\xff\xff")],
)
def test_a_cut_upper_bound_of_bytes_is_raised_by_one(data: bytes, upper: bytes | None) -> None:
    assert bounds("binary", [data], "truncate(3)") == (data[:3], upper)


def test_a_row_group_without_bounds_takes_them_from_the_whole_file() -> None:
    """Parquet leaves out the bounds of very long values; those of the other row groups say nothing about these."""
    found, _ = one_column("binary", [b"a", b"z" * 10_000, b"b"], row_group_size=1)
    assert found.lower_bounds == found.upper_bounds == {}
    assert found.null_value_counts == {1: 0}


def test_text_that_is_not_utf8_has_no_bounds() -> None:
    broken: Any = pa.array([b"\xff\xfe"], pa.large_binary()).view(pa.large_string())
    assert bounds("string", broken) == (None, None)


# uuids: signed halves in some releases of Iceberg Java, unsigned bytes elsewhere


def _uuids(*pairs: tuple[int, int]) -> list[bytes]:
    return [(high << 64 | low).to_bytes(16, "big") for high, low in pairs]


def test_uuid_bounds_are_kept_while_both_orders_agree() -> None:
    values = _uuids((1, 2**63 + 5), (7, 2**63 + 1))
    assert bounds("uuid", values) == (values[0], values[1])
    assert bounds("uuid", [uuid.UUID(int=5).bytes, None]) == (uuid.UUID(int=5).bytes, uuid.UUID(int=5).bytes)


@pytest.mark.parametrize("pairs", [((1, 0), (2**63, 0)), ((5, 1), (5, 2**63)), ((5, 1), (5, 2**63), (6, 1))])
def test_uuid_bounds_are_dropped_where_the_orders_differ(pairs: tuple[tuple[int, int], ...]) -> None:
    assert bounds("uuid", _uuids(*pairs)) == (None, None)
    assert bounds("uuid", _uuids(*pairs), row_group_size=1) == (None, None)


# Nesting

NESTED = to_schema(
    "s struct<a:int,f:double,u:uuid,in:struct<t:string>>, l array<struct<x:int>>, m map<string,double>,"
    " id bigint not null"
)


def _nested() -> pa.Table:
    rows = [
        {"s": {"a": 1, "f": float("nan"), "in": {"t": "x"}}, "l": [{"x": 1}, {"x": None}], "m": {"k": 1.0}, "id": 1},
        {"s": None, "l": [], "m": None, "id": 2},
        {"s": {"a": 5, "f": 2.0, "in": None}, "l": None, "m": {}, "id": 3},
    ]
    return pa.Table.from_batches([conform(batch, NESTED) for batch in to_reader(rows, NESTED)])


def test_fields_of_structs_have_bounds_and_those_in_lists_and_maps_counts_only() -> None:
    found = collected(NESTED, _nested())
    ids = {name: NESTED.find_field(name).field_id for name in NESTED.column_names}
    leaves = {ids[name] for name in ("s.a", "s.f", "s.u", "s.in.t", "l.element.x", "m.key", "m.value", "id")}
    assert set(found.value_counts) == set(found.null_value_counts) == set(found.column_sizes) == leaves
    assert set(found.lower_bounds) == {ids[name] for name in ("s.a", "s.f", "s.in.t", "id")}
    assert found.null_value_counts[ids["s.a"]] == 1
    assert found.upper_bounds[ids["s.a"]] == b"\x05\x00\x00\x00"
    assert found.nan_value_counts == {ids["s.f"]: 1}


# Properties


def test_metrics_modes_are_the_tables() -> None:
    schema = to_schema("a string, b string, c string, d string, s struct<x:string>")
    target = arrow_schema(schema)
    text = "abcdefghijklmnopqrstuvwxyz"
    row: dict[str, Any] = dict.fromkeys("abcd", text) | {"s": {"x": text}}
    rows = pa.table({name: pa.array([row[name]], target.field(name).type) for name in target.names}, schema=target)
    found = collected(
        schema,
        rows,
        {
            "write.metadata.metrics.default": "counts",
            "write.metadata.metrics.column.a": "none",
            "write.metadata.metrics.column.b": "full",
            "write.metadata.metrics.column.c": "truncate(2)",
            "write.metadata.metrics.column.d": "nonsense",
            "write.metadata.metrics.column.s.x": "truncate(1)",
        },
    )
    inner = schema.find_field("s.x").field_id
    assert set(found.value_counts) == {2, 3, 4, inner}
    assert found.lower_bounds == {2: text.encode(), 3: b"ab", inner: b"a"}
    assert found.upper_bounds == {2: text.encode(), 3: b"ac", inner: b"b"}
    assert set(found.column_sizes) == {1, 2, 3, 4, inner}


def test_wide_tables_get_metrics_for_their_first_columns_only() -> None:
    schema = to_schema(", ".join(f"c{i} int" for i in range(103)))
    assert [c.metrics.mode for c in plan(schema, {}).columns.values()].count("none") == 3
    limit = {"write.metadata.metrics.max-inferred-column-defaults": "5"}
    assert [c.metrics.mode for c in plan(schema, limit).columns.values()].count("truncate") == 5
    asked = {"write.metadata.metrics.default": "truncate(16)"}
    assert [c.metrics.mode for c in plan(schema, asked).columns.values()].count("none") == 0


def test_columns_of_the_sort_order_always_have_bounds() -> None:
    schema = to_schema("a int, b int")
    modes = plan(schema, {"write.metadata.metrics.default": "none"}, sorted_ids={2}).columns
    assert modes["a"].metrics.mode == "none"
    assert modes["b"].metrics.mode == "truncate"


def test_split_offsets_are_the_sorted_starts_of_the_row_groups() -> None:
    found, _ = one_column("bigint", list(range(10)), row_group_size=3)
    assert len(found.split_offsets) == 4
    assert found.split_offsets[0] == 4
    assert list(found.split_offsets) == sorted(found.split_offsets)


# Soundness, for anything

_text = st.one_of(
    st.text(max_size=6),
    st.text(alphabet=st.sampled_from(["a", "\x7f", "\u07ff", "\ud7ff", "\ue000", "\uffff", "\U0010ffff"]), max_size=6),
)
_bytes = st.one_of(st.binary(max_size=6), st.lists(st.sampled_from([0, 254, 255]), max_size=6).map(bytes))
_group = st.integers(1, 4)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.none() | _text, min_size=1, max_size=8), st.integers(1, 4), _group)
@example(["ab\ud7ff" + "z"], 3, 1)
def test_every_text_is_within_its_bounds(values: list[str | None], length: int, group: int) -> None:
    lower, upper = bounds("string", values, f"truncate({length})", group)
    for value in values:
        if value is not None:
            assert lower is not None
            # Iceberg orders texts by their UTF-8 bytes.
            assert lower.encode() <= value.encode()
            assert upper is None or value.encode() <= upper.encode()
            assert len(lower) <= length
            assert upper is None or len(upper) <= length


@settings(max_examples=150, deadline=None)
@given(st.lists(st.none() | _bytes, min_size=1, max_size=8), st.integers(1, 4), _group)
def test_all_bytes_are_within_their_bounds(values: list[bytes | None], length: int, group: int) -> None:
    lower, upper = bounds("binary", values, f"truncate({length})", group)
    for value in values:
        if value is not None:
            assert lower is not None
            assert lower <= value
            assert upper is None or value <= upper


def _scaled(scale: int, precision: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([(1, 0), (9, 2), (9, 9), (10, 2), (18, 4), (19, 0), (28, 10), (38, 38)]), _group)
def test_every_decimal_is_within_its_bounds(data: st.DataObject, shape: tuple[int, int], group: int) -> None:
    precision, scale = shape
    values = data.draw(st.lists(_scaled(scale, precision), min_size=1, max_size=6))
    lower, upper = bounds(f"decimal({precision},{scale})", values, row_group_size=group)
    assert (lower, upper) == (min(values), max(values))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.floats(width=32), min_size=1, max_size=8), st.sampled_from(["float", "double"]), _group)
def test_every_float_but_nan_is_within_its_bounds(values: list[float | None], kind: str, group: int) -> None:
    found, _ = one_column(kind, values, row_group_size=group)
    lower, upper = bounds(kind, values, row_group_size=group)
    real = [value for value in values if value is not None and not math.isnan(value)]
    assert found.nan_value_counts == {1: sum(value is not None and math.isnan(value) for value in values)}
    assert (lower is None) == (not real)
    assert all(lower <= value <= upper for value in real)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8), _group)
def test_every_instant_is_within_its_bounds(values: list[int], group: int) -> None:
    for kind, arrow in (("timestamp", pa.timestamp("us", "UTC")), ("timestamp_ntz", pa.timestamp("us"))):
        assert bounds(kind, numbers(arrow, values), row_group_size=group) == (min(values), max(values))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=6), _group)
def test_every_uuid_is_within_its_bounds_in_both_orders(values: list[bytes], group: int) -> None:
    lower, upper = bounds("uuid", values, row_group_size=group)
    if lower is None:
        return

    def signed(value: bytes) -> tuple[int, int]:
        return int.from_bytes(value[:8], "big", signed=True), int.from_bytes(value[8:], "big", signed=True)

    for value in values:
        assert lower <= value <= upper
        assert signed(lower) <= signed(value) <= signed(upper)
