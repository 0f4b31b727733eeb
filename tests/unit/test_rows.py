"""Rows in: every shape people hold them in, casts that lose nothing, and one message for all that does not fit."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from frazil.errors import InvalidInput, SchemaMismatch, Unsupported
from frazil.format.schemas import arrow_schema, to_schema
from frazil.stage import rows as rows_module
from frazil.stage.rows import conform, incoming_schema, opened, to_reader, without_untyped

SIMPLE = to_schema("id bigint not null, name string, ts timestamp")
UTC = dt.UTC
NOON = dt.datetime(2026, 11, 1, 12, tzinfo=UTC)


def naive(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=None)  # type: ignore[misc, arg-type]  # noqa: DTZ001 - without a zone is the point


def taken(rows: object, ddl: str | None = None) -> list[dict[str, Any]]:
    """What the table would hold."""
    schema = SIMPLE if ddl is None else to_schema(ddl)
    out: list[dict[str, Any]] = []
    for batch in to_reader(rows, schema):
        fitted = conform(batch, schema)
        fitted.validate(full=True)
        assert fitted.schema.equals(arrow_schema(schema), check_metadata=True)
        out.extend(fitted.to_pylist())
    return out


def refusal(rows: object, ddl: str) -> str:
    with pytest.raises(SchemaMismatch) as caught:
        taken(rows, ddl)
    return str(caught.value)


def column(kind: str, array: Any) -> list[Any]:
    return [row["c"] for row in taken(pa.table({"c": array}), f"c {kind}")]


def column_refusal(kind: str, array: Any) -> str:
    return refusal(pa.table({"c": array}), f"c {kind}")


# Shapes

TABLE = pa.table({"id": [1, 2], "name": ["a", None], "ts": pa.array([NOON, None], pa.timestamp("us", "UTC"))})
EXPECTED = [{"id": 1, "name": "a", "ts": NOON}, {"id": 2, "name": None, "ts": None}]


def _untyped(thing: Any) -> Any:
    return thing


class _Exporter:
    """Another library's stream: only the Arrow protocol."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return _untyped(TABLE).__arrow_c_stream__(requested_schema)


class _ArrayExporter:
    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return _untyped(TABLE.to_batches()[0]).__arrow_c_array__(requested_schema)


def _frame() -> pd.DataFrame:
    return pd.DataFrame(
        {"id": [1, 2], "name": ["a", None], "ts": pd.to_datetime(_untyped([NOON, None]), utc=True)}, index=[7, 9]
    )


SHAPES: dict[str, Any] = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.to_batches()[0],
    "reader": TABLE.to_reader,
    "stream": _Exporter,
    "array": _ArrayExporter,
    "generator of batches": lambda: iter(TABLE.to_batches(max_chunksize=1)),
    "list of batches": lambda: TABLE.to_batches(max_chunksize=1),
    "generator of tables": lambda: (TABLE.slice(i, 1) for i in range(2)),
    "list of dicts": lambda: EXPECTED,
    "generator of dicts": lambda: (row for row in EXPECTED),
    "generator of dicts with keys missing": lambda: iter([{"NAME": "a", "Id": 1, "ts": NOON}, {"Id": 2}]),
    "dataset": lambda: ds.dataset(TABLE),
    "scanner": lambda: ds.dataset(TABLE).scanner(batch_size=1),
    "dicts in another case and order": lambda: [{"NAME": "a", "Id": 1, "ts": NOON}, {"NAME": None, "Id": 2}],
    "dict of columns": lambda: {"id": [1, 2], "name": pa.array(["a", None]), "ts": (NOON, None)},
    "dict of numpy": lambda: {"id": np.array([1, 2]), "name": ["a", None], "ts": [NOON, None]},
    "pandas": _frame,
    "polars": lambda: pl.DataFrame(TABLE),
    "lazy polars": lambda: pl.DataFrame(TABLE).lazy(),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_rows_comes_in_the_same(shape: str) -> None:
    assert taken(SHAPES[shape]()) == EXPECTED


@pytest.mark.parametrize("shape", SHAPES)
def test_the_columns_of_opened_rows_can_be_asked_before_they_are_read(shape: str) -> None:
    rows = opened(SHAPES[shape]())
    assert [name.lower() for name in sorted(incoming_schema(rows).names, key=str.lower)] == ["id", "name", "ts"]
    assert taken(rows) == EXPECTED


def test_no_rows_are_fine() -> None:
    assert taken([]) == []
    assert taken(iter([]), "a int") == []
    assert taken(TABLE.slice(0, 0)) == []
    assert taken([{}, {}], "a int") == [{"a": None}, {"a": None}]


def test_a_spark_frame_is_refused_for_now() -> None:
    frame = type("DataFrame", (), {"__module__": "pyspark.sql.classic.dataframe"})()
    with pytest.raises(Unsupported, match="Spark"):
        to_reader(frame, SIMPLE)


@pytest.mark.parametrize(
    "thing", ["id", 3, None, b"x", [1, 2], ["a"], iter([1]), iter(["a"]), pa.array([1]), pl.Series([1])]
)
def test_what_is_not_rows_is_refused(thing: object) -> None:
    with pytest.raises(InvalidInput):
        to_reader(thing, SIMPLE)


def test_a_generator_of_dicts_is_read_a_batch_at_a_time_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_CHUNK", 10)
    read = []

    def numbered() -> Iterator[dict[str, Any]]:
        for number in range(25):
            read.append(number)
            yield {"id": number} if number < 20 else {"id": number, "name": "x", "ts": None}

    rows = opened(numbered())
    reader = to_reader(rows, SIMPLE)
    assert reader.read_next_batch().num_rows == 10
    assert len(read) == 10
    assert [batch.num_rows for batch in reader] == [10, 5]
    with pytest.raises(InvalidInput, match="only once"):
        list(to_reader(rows, SIMPLE))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"id": 1}, 2], "Row 1 is a int"),
        ([{"id": 1}, {"idd": 2}], "no such column"),
        ([{"id": 1}, {"id": "x"}], "id"),
    ],
)
def test_a_bad_row_of_a_generator_is_named(rows: list[Any], says: str) -> None:
    with pytest.raises((InvalidInput, SchemaMismatch), match=says):
        taken(iter(rows))


def test_batches_that_change_their_schema_are_refused() -> None:
    batches: Iterator[pa.RecordBatch] = iter([pa.record_batch({"id": [1]}), pa.record_batch({"id": ["x"]})])
    with pytest.raises(SchemaMismatch, match="batches differ"):
        taken(batches)


def test_a_pandas_frame_without_types_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidInput, match="pandas"):
        to_reader(pd.DataFrame({"id": [1, "x", object()]}), SIMPLE)


# Columns by name


def test_columns_are_matched_by_name_in_any_order_and_case() -> None:
    rows = pa.table({"TS": pa.array([NOON]), "ID": [5]})
    assert taken(rows) == [{"id": 5, "name": None, "ts": NOON}]


def test_all_problems_come_in_one_message() -> None:
    rows = pa.table({"nam": ["x"], "ts": pa.array([naive(2026, 1, 1)]), "a": [1.5]})
    message = refusal(rows, "id bigint not null, name string, ts timestamp, a int, b string not null")
    assert (
        "'nam': the table has no such column (Did you mean 'name'? Leave it out, or call with merge_schema=True"
        in message
    )
    assert "'id' is long: the rows do not have this required column" in message
    assert "'b' is string" in message
    assert "'ts' is timestamptz, given timestamp[us]" in message
    assert ".dt.tz_localize('UTC')" in message
    assert "'a' is int, given double" in message
    assert message.count("\n") == 5


def test_one_column_given_twice_is_refused() -> None:
    assert "is the same column" in refusal(pa.table({"Id": [1], "iD": [2]}), "id bigint")


def test_an_exact_name_wins_over_another_case() -> None:
    assert "'ID': 'id' is the same column" in refusal(pa.table({"id": [1], "ID": [2]}), "id bigint")


def test_two_keys_for_one_column_are_refused_by_both_names() -> None:
    assert "'ID' and 'id' name one column" in refusal([{"ID": 1, "id": 2}], "id bigint")
    assert "name the field 'x'" in refusal([{"s": {"X": 1, "x": 2}}], "s struct<x:int>")


@pytest.mark.parametrize("index", ["id", ["id"], ["ID", "n"], ["n", "id"]])
def test_an_index_named_like_a_column_of_the_table_is_that_column(index: Any) -> None:
    frame = pd.DataFrame({"id": [7, 8], "ID": [7, 8], "n": [1, 2], "name": ["a", "b"]})
    frame = frame.drop(columns=["ID"] if "ID" not in index else ["id"]).set_index(index)
    frame = frame.drop(columns=["n"], errors="ignore")
    expected = [{"id": 7, "name": "a", "ts": None}, {"id": 8, "name": "b", "ts": None}]
    assert taken(frame) == expected
    assert {name.lower() for name in incoming_schema(frame, SIMPLE).names} == {"id", "name"}


def test_an_index_named_like_a_column_of_the_frame_gives_way_to_it() -> None:
    frame = pd.DataFrame({"id": [7]}, index=pd.Index([9], name="ID"))
    assert taken(frame) == [{"id": 7, "name": None, "ts": None}]


def test_columns_without_a_type_are_left_out_when_a_table_grows() -> None:
    dicts = [{"id": 1, "new": None, "name": None}, {"id": 2, "new": None, "other": 3}]
    assert without_untyped(dicts, SIMPLE) == [{"id": 1, "name": None}, {"id": 2, "other": 3}]
    assert without_untyped({"id": [1], "new": [None]}, SIMPLE) == {"id": [1]}
    arrow = pa.table({"id": [1, 2], "name": pa.nulls(2), "new": pa.nulls(2)})
    expected = [{"id": 1, "name": None}, {"id": 2, "name": None}]
    table, reader = _untyped(without_untyped(arrow, SIMPLE)), _untyped(without_untyped(arrow.to_reader(), SIMPLE))
    assert table.to_pylist() == reader.read_all().to_pylist() == expected
    assert without_untyped(TABLE, SIMPLE) is TABLE
    assert taken(without_untyped(pd.DataFrame({"id": [1], "new": [None]}), SIMPLE)) == [
        {"id": 1, "name": None, "ts": None}
    ]


def _broken_text(kind: Any) -> Any:
    binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}[kind]
    raw: Any = pa.array([b"fine", None, b"\xff\xfe", b"fine"], binary)
    return pa.Array.from_buffers(kind, len(raw), raw.buffers())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: a.slice(1), lambda a: a.dictionary_encode()])
def test_text_that_is_not_utf8_is_refused(kind: Any, wrap: Any) -> None:
    array = wrap(_broken_text(kind))
    assert f"row {len(array) - 2} of its batch is not valid UTF-8" in column_refusal("string", array)
    assert "not valid UTF-8" in column_refusal("array<string>", pa.ListArray.from_arrays([0, len(array)], array))


def test_text_that_is_not_utf8_under_a_null_is_not_judged() -> None:
    raw: Any = _broken_text(pa.large_string())
    assert column("string", raw.slice(0, 2)) == ["fine", None]


@pytest.mark.parametrize("value", [1e300, -1e39, 10**39, 10**400, np.float64(1e39)])
def test_numbers_beyond_a_float_are_refused_not_made_infinite(value: Any) -> None:
    assert "beyond the range of float" in refusal([{"c": value}], "c float")
    assert "beyond the range of float" in refusal([{"c": [value]}], "c array<float>")


def test_infinity_and_rounded_digits_fit_a_float() -> None:
    assert taken([{"c": float("inf")}, {"c": 0.5}, {"c": 3e38}], "c float")[:2] == [{"c": float("inf")}, {"c": 0.5}]


@pytest.mark.parametrize(
    ("kind", "text", "advice"),
    [
        ("date", "2026-01-01", "datetime.date.fromisoformat('2026-01-01')"),
        ("timestamp", "2026-01-01", "datetime.datetime.fromisoformat('2026-01-01')"),
        ("timestamp_ntz", "2026-01-01", "datetime.datetime.fromisoformat('2026-01-01')"),
        ("time", "12:00", "datetime.time.fromisoformat('12:00')"),
    ],
)
def test_text_for_a_time_is_refused_with_the_way_to_parse_it(kind: str, text: str, advice: str) -> None:
    assert advice in refusal([{"c": text}], f"c {kind}")


def test_nulls_in_required_columns_are_counted_at_every_level() -> None:
    assert "'id' is long: 2 values are null" in refusal(pa.table({"id": [1, None, None]}), "id bigint not null")
    inner = pa.array([{"a": 1}, None, {"a": None}], pa.struct([("a", pa.int32())]))
    assert "'s.a' is int: 1 value is null" in refusal(pa.table({"s": inner}), "s struct<a:int not null>")
    required = to_schema(pa.schema([pa.field("l", pa.list_(pa.field("element", pa.int32(), nullable=False)))]))
    with pytest.raises(SchemaMismatch, match=r"'l\.element' is int: 1 value is null"):
        conform(pa.record_batch({"l": [[1, None], None, []]}), required)


def test_nullable_columns_without_nulls_go_into_required_ones() -> None:
    inner = pa.array([{"a": 1}, None], pa.struct([("a", pa.int32())]))
    assert taken(pa.table({"s": inner}), "s struct<a:int not null>") == [{"s": {"a": 1}}, {"s": None}]


# Casts


@pytest.mark.parametrize(
    ("kind", "array", "values"),
    [
        ("bigint", pa.array([1, None], pa.int32()), [1, None]),
        ("bigint", pa.array([2**63 - 1], pa.uint64()), [2**63 - 1]),
        ("int", pa.array([-(2**31), 2**31 - 1], pa.int64()), [-(2**31), 2**31 - 1]),
        ("double", pa.array([1.5], pa.float32()), [1.5]),
        ("double", pa.array([2**53], pa.int64()), [float(2**53)]),
        ("float", pa.array([1.5], pa.float16()), [1.5]),
        ("decimal(9,2)", pa.array([Decimal("1.5")]), [Decimal("1.50")]),
        ("decimal(9,2)", pa.array([Decimal("1.500")]), [Decimal("1.50")]),
        ("decimal(9,2)", pa.array([Decimal("1.5")], pa.decimal256(50, 1)), [Decimal("1.50")]),
        ("decimal(9,2)", pa.array([-1234567], pa.int64()), [Decimal("-1234567.00")]),
        ("decimal(38,38)", pa.array([0], pa.uint64()), [Decimal("0E-38")]),
        ("string", pa.array(["ä", None], pa.string_view()), ["ä", None]),
        ("string", pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        ("int", pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([7, 8])), [7, 7, 8]),
        ("binary", pa.array([b"\xff"], pa.binary_view()), [b"\xff"]),
        ("binary", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        ("fixed(2)", pa.array([b"ab", None], pa.binary()), [b"ab", None]),
        ("date", pa.array([86_400_000], pa.date64()), [dt.date(1970, 1, 2)]),
        ("time", pa.array([1], pa.time32("s")), [dt.time(0, 0, 1)]),
        ("time", pa.array([5000], pa.time64("ns")), [dt.time(0, 0, 0, 5)]),
        ("timestamp_ntz", pa.array([-1], pa.timestamp("s")), [naive(1969, 12, 31, 23, 59, 59)]),
        ("timestamp_ntz", pa.array([7000], pa.timestamp("ns")), [naive(1970, 1, 1, 0, 0, 0, 7)]),
        ("timestamp", pa.array([NOON], pa.timestamp("ms", "Europe/Berlin")), [NOON]),
        ("int", pa.nulls(2), [None, None]),
        ("struct<a:int>", pa.nulls(1), [None]),
        ("uuid", pa.array([uuid.UUID(int=5).bytes, None], pa.binary()), [uuid.UUID(int=5), None]),
        ("uuid", pa.array([uuid.UUID(int=5).bytes], pa.binary(16)), [uuid.UUID(int=5)]),
        ("uuid", pa.array([uuid.UUID(int=5).bytes], pa.uuid()), [uuid.UUID(int=5)]),
        ("uuid", pa.array([str(uuid.UUID(int=5)), None]), [uuid.UUID(int=5), None]),
    ],
)
def test_casts_that_lose_nothing_are_made(kind: str, array: Any, values: list[Any]) -> None:
    assert column(kind, array) == values


@pytest.mark.parametrize(
    ("kind", "array", "words"),
    [
        ("int", pa.array([1, 2**31]), "2147483648 (row 1"),
        ("bigint", pa.array([2**63], pa.uint64()), str(2**63)),
        ("int", pa.array([1.0]), "astype('Int64')"),
        ("int", pa.array(["1"]), "given string"),
        ("int", pa.array([True]), "given bool"),
        ("boolean", pa.array([1]), "given int64"),
        ("float", pa.array([1.5]), "pa.float32()"),
        ("float", pa.array([2**24 + 1]), str(2**24 + 1)),
        ("double", pa.array([2**53 + 1]), str(2**53 + 1)),
        ("double", pa.array([Decimal("1.5")]), "given decimal128"),
        ("decimal(9,2)", pa.array([Decimal("1.00"), Decimal("12345678.90")]), "Decimal('12345678.90') (row 1"),
        ("decimal(9,2)", pa.array([Decimal("1.234")]), "Round to 2"),
        ("decimal(9,2)", pa.array([10_000_000]), "10000000"),
        ("decimal(9,2)", pa.array([1.5]), "given double"),
        ("string", pa.array([1]), "given int64"),
        ("string", pa.array([b"x"]), "given binary"),
        ("binary", pa.array(["x"]), "given string"),
        ("fixed(2)", pa.array([b"ab", b"abc"]), "2 bytes"),
        ("fixed(2)", pa.array([b"abc"], pa.binary(3)), "2 bytes"),
        ("date", pa.array([NOON]), "given timestamp"),
        ("timestamp", pa.array([naive(2026, 1, 1)]), "no time zone"),
        ("timestamp_ntz", pa.array([NOON]), "tz_localize(None)"),
        ("timestamp_ntz", pa.array([1000, 1001], pa.timestamp("ns")), "00.000001001 (row 1"),
        ("timestamp_ntz", pa.array([2**60], pa.timestamp("s")), "does not fit"),
        ("time", pa.array([1001], pa.time64("ns")), "microseconds"),
        ("uuid", pa.array(["nope"]), "'nope' is not a uuid"),
        ("uuid", pa.array([b"short"]), "16 bytes"),
        ("uuid", pa.array([5]), "16 bytes"),
        ("array<int>", pa.array([1]), "given int64"),
        ("struct<a:int>", pa.array([[1]]), "given list"),
        ("map<string,int>", pa.array([{"key": "a", "value": 1}]), "given struct"),
        ("struct<a:int>", pa.array([{"a": "x", "b": 1}]), "'c.b': the table has no such column"),
        ("array<int>", pa.array([["x"]]), "'c.element' is int, given string"),
    ],
)
def test_casts_that_would_lose_something_are_refused_with_the_value(kind: str, array: Any, words: str) -> None:
    message = column_refusal(kind, array)
    assert words in message
    assert "'c" in message


def test_values_under_a_null_struct_are_not_judged() -> None:
    hidden = pa.StructArray.from_arrays([pa.array([2**40, 3])], names=["a"], mask=pa.array([True, False]))
    assert column("struct<a:int not null>", hidden) == [None, {"a": 3}]


def test_values_under_a_null_list_and_rows_sliced_away_are_not_judged() -> None:
    offsets = pa.array([0, 1, 2, 3], pa.int32())
    hidden = pa.ListArray.from_arrays(offsets, pa.array([2**40, 2**41, 7]), mask=pa.array([False, True, False]))
    assert column("array<int>", hidden.slice(1)) == [None, [7]]


LISTS = [pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_view(pa.int32()), pa.large_list_view(pa.int32())]


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_every_kind_of_list_comes_in(kind: pa.DataType) -> None:
    given = [[1, 2], None, [], [3, None]]
    assert column("array<bigint>", pa.array(given, kind)) == given
    assert column("array<bigint>", pa.array(given, kind).slice(1, 3)) == given[1:]


def test_lists_of_one_length_come_in() -> None:
    assert column("array<int>", pa.array([[1, 2], None], pa.list_(pa.int32(), 2))) == [[1, 2], None]


def test_maps_come_in_as_maps_and_as_lists_of_pairs() -> None:
    given = [[("a", [1])], None, [], [("b", None), ("c", [2, 3])]]
    array = pa.array(given, pa.map_(pa.string(), pa.list_(pa.int32())))
    assert column("map<string,array<bigint>>", array.slice(1)) == given[1:]
    pairs = pa.array([None if row is None else [{"value": v, "key": k} for k, v in row] for row in given])
    assert column("map<string,array<bigint>>", pairs) == given
    assert "'c.value.element' is int" in column_refusal(
        "map<string,array<int>>", pa.array([[("a", [2**40])]], pa.map_(pa.string(), pa.list_(pa.int64())))
    )


def test_deep_nesting_is_cast_by_name_at_every_level() -> None:
    ddl = "c array<struct<m:map<string,array<decimal(5,2)>>,id:bigint>>"
    inner = pa.struct([("ID", pa.int8()), ("m", pa.map_(pa.string(), pa.list_(pa.int32())))])
    array = pa.array([[{"ID": 1, "m": [("k", [1, None])]}, None], None], pa.list_(inner))
    assert [row["c"] for row in taken(pa.table({"c": array}), ddl)] == [
        [{"m": [("k", [Decimal("1.00"), None])], "id": 1}, None],
        None,
    ]


# pandas and polars


def test_pandas_integers_with_gaps_say_what_to_type() -> None:
    assert "astype('Int64')" in refusal(pd.DataFrame({"id": [1, None]}), "id bigint")
    assert taken(pd.DataFrame({"id": [1, None]}).astype("Int64"), "id bigint") == [{"id": 1}, {"id": None}]


def test_pandas_naive_nanoseconds_say_what_to_type() -> None:
    frame = pd.DataFrame({"ts": pd.to_datetime(["2026-11-01 12:00"]).astype("datetime64[ns]")})
    assert "tz_localize('UTC')" in refusal(frame, "ts timestamp")
    assert taken(frame.assign(ts=frame["ts"].dt.tz_localize("UTC")), "ts timestamp") == [{"ts": NOON}]


def test_polars_types_come_in() -> None:
    frame = pl.DataFrame(
        {"c": pl.Series(["a", "b"], dtype=pl.Categorical), "l": [[1], None], "s": [{"x": 1}, {"x": None}]}
    )
    assert taken(frame, "c string, l array<int>, s struct<x:bigint>") == [
        {"c": "a", "l": [1], "s": {"x": 1}},
        {"c": "b", "l": None, "s": {"x": None}},
    ]
    texts = pl.DataFrame({"l": [["a"], None, ["b", None]], "s": [None, {"x": "y"}, {"x": None}]})
    expected = [{"l": ["a"], "s": None}, {"l": None, "s": {"x": "y"}}, {"l": ["b", None], "s": {"x": None}}]
    assert taken(texts, "l array<string>, s struct<x:string>") == expected
    assert taken(texts[1:], "l array<string>, s struct<x:string>") == expected[1:]


# Python values

EVERY = (
    "b boolean, i int, l bigint, f float, d double, de decimal(9,2), st string, da date, ti time, ts timestamp_ntz,"
    " tz timestamp, u uuid, fx fixed(2), bi binary, li array<int>, m map<string,int>,"
    " s struct<a:int,b:array<date>>, us array<struct<u:uuid>>, um map<uuid,uuid>"
)


def test_dicts_are_built_with_the_tables_types() -> None:
    row = {
        "b": True,
        "i": 1,
        "l": np.int64(2),
        "f": 1,
        "d": 2.5,
        "de": 3,
        "st": "x",
        "da": dt.date(2026, 1, 2),
        "ti": dt.time(1, 2, 3),
        "ts": naive(2026, 1, 2),
        "tz": naive(2026, 11, 1, 12),
        "u": str(uuid.UUID(int=7)),
        "fx": b"ab",
        "bi": bytearray(b"abc"),
        "li": (1, None),
        "m": {"a": 1},
        "s": {"A": 5, "b": [dt.date(2026, 1, 2)]},
        "us": [{"u": uuid.UUID(int=7)}, {"u": None}, None],
        "um": {uuid.UUID(int=7): uuid.UUID(int=8)},
    }
    assert taken([row, {}], EVERY)[0] == {
        **row,
        "de": Decimal("3.00"),
        "tz": NOON,
        "u": uuid.UUID(int=7),
        "bi": b"abc",
        "li": [1, None],
        "m": [("a", 1)],
        "s": {"a": 5, "b": [dt.date(2026, 1, 2)]},
        "um": [(uuid.UUID(int=7), uuid.UUID(int=8))],
    }


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("int", 1.5, "1.5 is a float"),
        ("int", 1.0, "is a float"),
        ("int", True, "is a bool"),
        ("int", "1", "is a str"),
        ("int", 2**31, "2147483648 (row 1) does not fit"),
        ("boolean", 1, "is a int"),
        ("double", "x", "is a str"),
        ("decimal(5,2)", 1.5, "Decimal('1.10')"),
        ("decimal(5,2)", Decimal("1000.00"), "Decimal('1000.00') (row 1)"),
        ("decimal(5,2)", Decimal("1.234"), "(row 1)"),
        ("string", 1, "is a int"),
        ("string", b"x", "is a bytes"),
        ("binary", "x", "is a str"),
        ("fixed(2)", b"abc", "(row 1)"),
        ("date", naive(2026, 1, 1), "value.date()"),
        ("timestamp", dt.date(2026, 1, 1), "not a datetime"),
        ("timestamp", "2026-01-01", "not a datetime"),
        ("timestamp_ntz", NOON, "without a time zone"),
        ("timestamp", pd.Timestamp(1, unit="ns"), "nanoseconds"),
        ("uuid", "x", "not a uuid"),
        ("uuid", b"x", "is a bytes"),
        ("array<int>", "ab", "not a list"),
        ("array<int>", [1, "b"], "is a str"),
        ("map<string,int>", [1], "not a dict"),
        ("struct<a:int>", [1], "not a dict"),
        ("struct<abc:int>", {"abd": 1}, "no field 'abd' (row 1) (Did you mean 'abc'?"),
    ],
)
def test_python_values_of_another_type_are_refused_with_their_row(kind: str, value: Any, words: str) -> None:
    message = refusal([{"c": None}, {"c": value}], f"c {kind}")
    assert words in message
    assert "row 1" in message


def test_unknown_keys_are_refused() -> None:
    message = refusal([{"id": 1}, {"idd": 2}], "id bigint")
    assert "'idd': the table has no such column (Did you mean 'id'?" in message


@pytest.mark.parametrize("rows", [[{"id": 1}, {3: 4}], {3: [4]}])
def test_keys_that_are_not_text_are_refused(rows: Any) -> None:
    for take in (lambda: taken(rows), lambda: incoming_schema(rows, SIMPLE)):
        with pytest.raises(InvalidInput, match="3 is of the type int, not text"):
            take()


def test_a_new_column_of_huge_numbers_has_no_type() -> None:
    with pytest.raises(SchemaMismatch, match="'big' has whole numbers of more than 64 bits"):
        incoming_schema([{"big": 2**64}], SIMPLE)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidInput, match="different lengths"):
        taken({"id": [1], "name": []})


def test_inferred_columns_keep_the_tables_types_where_these_hold_them() -> None:
    schema = to_schema("i int, j int, ts timestamp, u uuid")
    rows = [{"i": 1, "j": 2**40, "ts": naive(2026, 1, 1), "u": str(uuid.UUID(int=1)), "new": 1.5}]
    found = incoming_schema(rows, schema)
    assert found.field("i").type == pa.int32()
    assert found.field("j").type == pa.int64()
    assert found.field("ts").type == pa.timestamp("us", "UTC")
    assert found.field("u").type == pa.uuid()
    assert found.field("new").type == pa.float64()


def test_an_iterator_must_be_opened_before_its_columns_are_asked() -> None:
    with pytest.raises(InvalidInput, match="only once"):
        incoming_schema(iter(TABLE.to_batches()))
