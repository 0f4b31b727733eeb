"""SQL filters: what they mean on rows, what they say to statistics, and what they refuse."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import re
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import InvalidInput
from frazil.expr import Facts, FileFacts, Filter, Lookup, in_partitions, may_match, must_match, parse_filter
from frazil.expr.facts import Atom
from frazil.format.manifests import summarize_partitions
from frazil.model import DataFile

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "small", IntegerType(), required=False),
    NestedField(3, "f", FloatType(), required=False),
    NestedField(4, "d", DoubleType(), required=False),
    NestedField(5, "name", StringType(), required=False),
    NestedField(6, "flag", BooleanType(), required=False),
    NestedField(7, "price", DecimalType(9, 2), required=False),
    NestedField(8, "day", DateType(), required=False),
    NestedField(9, "ts", TimestamptzType(), required=False),
    NestedField(
        10,
        "s",
        StructType(
            NestedField(11, "x", IntegerType(), required=False), NestedField(12, "y", StringType(), required=True)
        ),
        required=False,
    ),
    NestedField(13, "u", UUIDType(), required=False),
    NestedField(14, "a.b", IntegerType(), required=False),
    NestedField(15, "raw", BinaryType(), required=False),
    NestedField(16, "ntz", TimestampType(), required=False),
    NestedField(17, "clock", TimeType(), required=False),
    NestedField(18, "tags", ListType(19, StringType(), element_required=False), required=False),
)
ARROW = schema_to_pyarrow(SCHEMA, include_field_ids=False)
NAN = float("nan")
Row = dict[str, Any]


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([{field.name: row.get(field.name) for field in SCHEMA.fields} for row in rows], ARROW)


def selected(text: str, rows: list[Row]) -> list[int]:
    """The positions of the rows that a filter selects."""
    mask = parse_filter(text, SCHEMA).mask(table(rows))
    return [position for position, kept in enumerate(mask.to_pylist()) if kept]


def holds(text: str, **row: Any) -> bool:
    return selected(text, [row]) == [0]


# What filters mean


@pytest.mark.parametrize(
    ("text", "row", "expected"),
    [
        ("id = 3", {"id": 3}, True),
        ("id = 3", {"id": None}, False),
        ("not id = 3", {"id": None}, False),
        ("id <> 3", {"id": None}, False),
        ("id <=> null", {"id": None}, True),
        ("id <=> 3", {"id": None}, False),
        ("not (id <=> 3)", {"id": None}, True),
        ("id is distinct from 3", {"id": None}, True),
        ("id = null", {"id": None}, False),
        ("id in (1, null)", {"id": 1}, True),
        ("id in (1, null)", {"id": 2}, False),
        ("id not in (1, null)", {"id": 2}, False),
        ("id not in (1)", {"id": 2}, True),
        ("id not in (1)", {"id": None}, False),
        ("id between 1 and 3", {"id": 3}, True),
        ("id not between 1 and 3", {"id": None}, False),
        ("id = 1 or flag", {"id": 1, "flag": None}, True),
        ("id = 1 and flag", {"id": 2, "flag": None}, False),
        ("not (id = 1 and flag)", {"id": 2, "flag": None}, True),
        ("flag is not true", {"flag": None}, True),
        ("flag is false", {"flag": None}, False),
        ("flag is unknown", {"flag": None}, True),
        # NaN equals NaN and is greater than every other number.
        ("d = cast('NaN' as double)", {"d": NAN}, True),
        ("d > 1e308", {"d": NAN}, True),
        ("d >= cast('Infinity' as double)", {"d": NAN}, True),
        ("d < cast('NaN' as double)", {"d": math.inf}, True),
        ("d < 5", {"d": NAN}, False),
        ("d in (cast('NaN' as double))", {"d": NAN}, True),
        ("d <> 1", {"d": NAN}, True),
        ("isnan(d)", {"d": NAN}, True),
        ("isnan(d)", {"d": None}, False),
        ("d = 0", {"d": -0.0}, True),
        ("d in (0, 7)", {"d": -0.0}, True),
        # Numbers of different types.
        ("id = 3.5", {"id": 3}, False),
        ("id > 3.5", {"id": 4}, True),
        ("id = 3.0", {"id": 3}, True),
        ("id < 99999999999999999999", {"id": 2**63 - 1}, True),
        ("id > -99999999999999999999", {"id": -(2**63)}, True),
        ("id = -9223372036854775808", {"id": -(2**63)}, True),
        ("small = 3000000000", {"small": 3}, False),
        ("price = 1.1", {"price": Decimal("1.10")}, True),
        ("price = 1.101", {"price": Decimal("1.10")}, False),
        ("price < 1.101", {"price": Decimal("1.10")}, True),
        ("price > 12345678901234567890", {"price": Decimal("1.10")}, False),
        ("price = 1", {"price": Decimal("1.00")}, True),
        ("f = 0.1", {"f": 0.1}, False),  # as in Spark: the 32-bit number is not 0.1
        ("f = cast(0.1 as float)", {"f": 0.1}, True),
        ("d = 0.1", {"d": 0.1}, True),
        ("id = 1e0", {"id": 1}, True),
        # Arithmetic.
        ("id / 2 = 1.5", {"id": 3}, True),
        ("id div 2 = -1", {"id": -3}, True),
        ("id % 2 = -1", {"id": -3}, True),
        ("id % -1 = 0", {"id": -(2**63)}, True),
        ("d % 2 = 1.5", {"d": 3.5}, True),
        ("price * 3 = 3.30", {"price": Decimal("1.10")}, True),
        ("price / 3 > 0.366666", {"price": Decimal("1.10")}, True),
        ("-id = -3 and abs(-id) = 3 and +id = 3", {"id": 3}, True),
        ("id <> 0 and 10 / id > 2", {"id": 0}, False),
        ("id = 0 or 10 / id > 2", {"id": 0}, True),
        ("case when id = 0 then true else 10 / id > 2 end", {"id": 0}, True),
        ("10 / nullif(id, 0) is null", {"id": 0}, True),
        # Text.
        ("name = 'it''s'", {"name": "it's"}, True),
        (r"name = 'a\nb'", {"name": "a\nb"}, True),
        ("name = r'a\\nb'", {"name": "a\\nb"}, True),
        ("name = 'a' 'b'", {"name": "ab"}, True),
        ("name like 'a%'", {"name": "a\nb"}, True),
        ("name like '_'", {"name": "é"}, True),
        (r"name like '50\%'", {"name": "50%"}, True),
        (r"name like '50\%'", {"name": "505"}, False),
        ("name like '50!%' escape '!'", {"name": "50%"}, True),
        ("name like 'a.c'", {"name": "abc"}, False),
        ("name ilike 'É%'", {"name": "été"}, True),
        ("name not like 'a%'", {"name": None}, False),
        ("name rlike '^b.*d$'", {"name": "bcd"}, True),
        ("upper(name) = 'STRASSE'", {"name": "straße"}, True),
        ("lower(name) = 'abc'", {"name": "ABC"}, True),
        ("length(name) = 3", {"name": "été"}, True),
        ("substring(name, 2, 2) = 'bc'", {"name": "abcd"}, True),
        ("substr(name, -2) = 'cd'", {"name": "abcd"}, True),
        ("substring(name, -5, 3) = 'a'", {"name": "abc"}, True),
        ("substring(name, 0, 2) = 'ab'", {"name": "abc"}, True),
        ("trim(name) = 'x' and ltrim(name) = 'x ' and rtrim(name) = ' x'", {"name": " x "}, True),
        ("trim(name) = 'x'", {"name": "\tx"}, False),
        ("concat(name, '-', id) = 'a-1' and name || 'b' = 'ab'", {"name": "a", "id": 1}, True),
        ("concat(name, 'x') is null", {"name": None}, True),
        ("startswith(name, 'a') and endswith(name, 'c') and contains(name, 'b')", {"name": "abc"}, True),
        ("coalesce(name, 'none') = 'none'", {"name": None}, True),
        ("if(id > 1, name = 'a', name = 'b')", {"id": None, "name": "b"}, True),
        ("case id when 1 then 'x' when 2 then 'y' end = 'y'", {"id": 2}, True),
        # Dates and times: text without a zone is UTC.
        ("ts = '2026-11-01'", {"ts": dt.datetime(2026, 11, 1, tzinfo=dt.UTC)}, True),
        ("ts = '2026-11-01 01:00:00+01:00'", {"ts": dt.datetime(2026, 11, 1, tzinfo=dt.UTC)}, True),
        ("ts = timestamp '2026-10-31 20:00 America/New_York'", {"ts": dt.datetime(2026, 11, 1, tzinfo=dt.UTC)}, True),
        ("ts < '2026-11-01T00:00:00.000001Z'", {"ts": dt.datetime(2026, 11, 1, tzinfo=dt.UTC)}, True),
        ("date(ts) = '2026-11-01'", {"ts": dt.datetime(2026, 11, 1, 23, 59, 59, tzinfo=dt.UTC)}, True),
        ("date(ts) = '1969-12-31'", {"ts": dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC)}, True),
        ("to_date(ts) = day", {"ts": dt.datetime(2026, 11, 1, 5, tzinfo=dt.UTC), "day": dt.date(2026, 11, 1)}, True),
        ("day(ts) = 5 and month(ts) = 11 and year(ts) = 2026", {"ts": dt.datetime(2026, 11, 5, tzinfo=dt.UTC)}, True),
        ("hour(ts) = 7 and minute(ts) = 8 and second(ts) = 9", {"ts": dt.datetime(2026, 1, 1, 7, 8, 9, 0, dt.UTC)}, 1),
        ("dayofweek(day) = 1 and weekday(day) = 6", {"day": dt.date(2026, 11, 1)}, True),
        ("hour(day) = 0", {"day": dt.date(2026, 11, 1)}, True),
        ("day > '2026-10-31 12:00:00'", {"day": dt.date(2026, 11, 1)}, True),
        ("day < timestamp '2026-11-01 12:00:00'", {"day": dt.date(2026, 11, 1)}, True),
        ("ts > date '2026-10-31'", {"ts": dt.datetime(2026, 11, 1, tzinfo=dt.UTC)}, True),
        ("ntz = '2026-11-01 10:00:00'", {"ntz": dt.datetime.fromisoformat("2026-11-01T10:00:00")}, True),
        ("clock >= '10:30:00'", {"clock": dt.time(10, 30)}, True),
        # Other types, nested columns, names.
        ("u = 'f79c3e09-677c-4bbd-a479-3f349cb785e7'", {"u": uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")}, True),
        ("raw = X'ff00'", {"raw": b"\xff\x00"}, True),
        ("s.x = 1", {"s": {"x": 1, "y": ""}}, True),
        ("s.x is null", {"s": None}, True),
        ("s.y is null", {"s": None}, True),
        ("s is null", {"s": None}, True),
        ("tags is not null", {"tags": []}, True),
        ("`a.b` = 4", {"a.b": 4}, True),
        ("ID = 1 AND Name = 'x'", {"id": 1, "name": "x"}, True),
        ("cast(name as int) = 5", {"name": " 5 "}, True),
        ("try_cast(name as int) is null", {"name": "x"}, True),
        ("cast(d as int) = -1", {"d": -1.9}, True),
        ("cast(d as decimal(10, 1)) = 0.1", {"d": 0.05}, True),
        ("cast(ts as string) = '1970-01-01 00:00:00.5'", {"ts": dt.datetime(1970, 1, 1, 0, 0, 0, 500000, dt.UTC)}, 1),
        ("true", {}, True),
        ("null", {}, False),
        ("1 = 1", {}, True),
    ],
)  # fmt: skip
def test_a_filter_means_what_spark_means(text: str, row: Row, expected: bool) -> None:
    assert holds(text, **row) is bool(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty"]),
        ("   ", ["empty"]),
        ("nam = 'x'", ["'nam'", "Did you mean name?"]),
        ("a.b = 4", ["back-ticks"]),
        ("s.z = 4", ["'z'", "x, y"]),
        ('name = "x"', ["double quotes", "'x'", "`x`"]),
        ("id = '3'", ["integer and text", "CAST"]),
        ("name = 3", ["integer and text"]),
        ("flag = 'true'", ["boolean and text"]),
        ("id =", ["not valid SQL", "column 4"]),
        ("(id = 1", ["not valid SQL"]),
        ("name = 'x", ["quote"]),
        ("id = 1; id = 2", ["more than one"]),
        ("id = 1 x", ["not supported"]),
        ("show tables", ["statement"]),
        ("drop table t", ["not supported"]),
        ("id", ["not a condition"]),
        ("id + 1", ["not a condition"]),
        ("id in (select 1)", ["subquery"]),
        ("exists (select 1)", ["subquery"]),
        ("count(id) > 1", ["aggregate count"]),
        ("md5(name) = 'x'", ["md5", "Supported are"]),
        ("foo(id) = 1", ["foo", "position 1"]),
        ("tags[0] = 'a'", ["not supported"]),
        ("s = 1", ["nested"]),
        ("ts > now()", ["now()", "changes"]),
        ("ts > current_timestamp()", ["changes"]),
        ("ts = 'yesterday'", ["'yesterday'", "timestamp"]),
        ("day = '2026-02-30'", ["'2026-02-30'", "date"]),
        ("ntz = '2026-11-01 00:00:00Z'", ["time zone"]),
        ("name + 1 = 2", ["number is wanted"]),
        ("upper(id) = 'A'", ["string is wanted"]),
        ("not id", ["condition is wanted"]),
        ("name like id", ["string is wanted"]),
        ("name like upper(name)", ["constant pattern"]),
        ("name like 'a!bc' escape '!'", ["escape"]),
        ("name rlike '(?=x)'", ["regular expression"]),
        ("cast(day as int) = 1", ["date to INT"]),
        ("id = 1" + "0" * 40, ["digits"]),
        ("hour(name, 1) = 2", ["not"]),
        ("id = 1e", ["not a number"]),
        ("substring(name) = 'a'", ["too few arguments"]),
        ("day() = 1", ["too few arguments"]),
        ("map(id) = 1", ["too few arguments"]),
        ("id = " + "9" * 5000, ["digits"]),
    ],
)
def test_a_bad_filter_is_refused_with_a_sentence(text: str, words: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_filter(text, SCHEMA)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "row", "words"),
    [
        ("10 / id > 2", {"id": 0}, "Division by zero in some row"),
        ("10 % price > 2", {"price": Decimal(0)}, "Division by zero in some row"),
        ("id + 1 > 0", {"id": 2**63 - 1}, "Numeric overflow in some row"),
        ("cast(name as int) = 1", {"name": "x"}, "TRY_CAST"),
        ("cast(id as int) = 1", {"id": 2**40}, "does not fit INT"),
    ],
)
def test_a_row_spark_would_fail_on_fails_with_a_sentence(text: str, row: Row, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        holds(text, **row)


def test_names_that_differ_only_in_case_are_ambiguous_unless_asked_to_be_exact() -> None:
    schema = Schema(NestedField(1, "Id", LongType(), required=False), NestedField(2, "id", LongType(), required=False))
    with pytest.raises(InvalidInput, match="several columns"):
        parse_filter("id = 1", schema)
    assert parse_filter("id = 1", schema, case_sensitive=True).field_ids == {2}
    with pytest.raises(InvalidInput, match="ID"):
        parse_filter("ID = 1", schema, case_sensitive=True)


def test_p16_a_filter_follows_a_renamed_column_and_refuses_a_dropped_or_retyped_one() -> None:
    made = parse_filter("id = 3", Schema(NestedField(1, "id", IntegerType(), required=False)))
    renamed = Schema(NestedField(1, "key", IntegerType(), required=False), NestedField(2, "id", IntegerType()))
    moved = made.rebound(renamed)
    assert moved.mask(pa.table({"key": [3, 4], "id": [4, 3]})).to_pylist() == [True, False]
    assert (moved.may, moved.must) == (Atom("eq", 1, 3), Atom("eq", 1, 3))
    assert pickle.loads(pickle.dumps(moved)).mask(pa.table({"key": [3], "id": [4]})).to_pylist() == [True]
    with pytest.raises(InvalidInput, match="dropped"):
        made.rebound(Schema(NestedField(2, "id", IntegerType(), required=False)))
    with pytest.raises(InvalidInput, match="type"):
        made.rebound(Schema(NestedField(1, "id", StringType(), required=False)))


def one_column(kind: IcebergType) -> Schema:
    return Schema(NestedField(1, "x", kind, required=False))


def bounds_of(kind: PrimitiveType, *values: Any) -> DataFile:
    low, high = (to_bytes(kind, each) for each in (min(values), max(values)))
    counts = {1: len(values)}
    return DataFile(
        file_path="f",
        record_count=len(values),
        file_size_in_bytes=1,
        value_counts=counts,
        null_value_counts={1: 0},
        nan_value_counts={1: 0},
        lower_bounds={1: low},
        upper_bounds={1: high},
    )


def verdicts(made: Filter, kind: PrimitiveType, value: Any) -> tuple[bool, bool, bool]:
    """Of a row with this value in a file of this type: whether it is selected, may be, and must be."""
    arrow: Any = schema_to_pyarrow(kind)
    rows = pa.table({"x": pa.array([value], arrow)})
    facts = FileFacts(made.schema, made.field_ids, {}).of_file(bounds_of(kind, value))
    return made.mask(rows).true_count == 1, may_match(made.may)(facts), must_match(made.must)(facts)


FLOAT_TENTH = struct.unpack("<f", struct.pack("<f", 0.1))[0]
WIDER: dict[str, tuple[PrimitiveType, PrimitiveType, list[Any], list[Any]]] = {
    # name: old type, new type, values of the old one, values that only the new one has
    "int": (IntegerType(), LongType(), [-(2**31), -1, 0, 7, 2**31 - 1], [2**31, 2**31 + 5, 3 * 10**9, -(2**40)]),
    "float": (FloatType(), DoubleType(), [-1.5, 0.0, FLOAT_TENTH, 7.0, 3e38], [0.1, 1e300, -1e300, 7.000000000001]),
    "decimal": (
        DecimalType(5, 2),
        DecimalType(9, 2),
        [Decimal("-999.99"), Decimal("0.00"), Decimal("0.10"), Decimal("7.00"), Decimal("999.99")],
        [Decimal("1000.00"), Decimal("30000.05"), Decimal("-1234567.89")],
    ),
}
CONDITIONS = [
    "x = 7", "x <> 7", "x < 3000000000", "x > -3000000000", "x <= 2147483647.5", "x = 0.1", "x <=> 0.1", "x >= 0.1",
    "x < 999.995", "x > 999.99", "x in (7, 0.1, 1000)", "x not in (7, 30000.05)", "x between 0 and 1000", "x < 1e300",
    "x = cast(0.1 as float)", "abs(x) = 7", "-x < 0", "x + 1 > 8", "x * 2 = 14", "coalesce(x, 0) > 1000",
    "case when x > 7 then x else 0 end > 999.99", "x is null or x = 7", "isnan(x)", "try_cast(x as bigint) = 7",
]  # fmt: skip


@pytest.mark.parametrize("text", CONDITIONS)
@pytest.mark.parametrize("kind", WIDER)
def test_p16_a_filter_on_a_widened_column_selects_the_same_rows_and_means_what_it_says_on_new_values(
    kind: str, text: str
) -> None:
    old, new, before, only_new = WIDER[kind]
    made = parse_filter(text, one_column(old))
    wide = made.rebound(one_column(new))
    again = parse_filter(text, one_column(new))
    for moved in (wide, pickle.loads(pickle.dumps(wide))):
        for value in before:
            # In a file from before, and in one from after.
            held = verdicts(made, old, value)[0]
            for file in (old, new):
                found, may, must = verdicts(moved, file, value)
                assert found == held
                assert must <= found <= may
        for value in only_new:
            assert verdicts(moved, new, value) == verdicts(again, new, value)
            found, may, must = verdicts(moved, new, value)
            assert must <= found <= may


def test_p16_a_float_compared_with_a_decimal_number_meets_the_same_rows_as_double() -> None:
    """0.1 is no 32-bit float: a column of floats never holds it, and one of doubles may."""
    for text, old_row in (("x = 0.1", False), ("x = cast(0.1 as float)", True)):
        made = parse_filter(text, one_column(FloatType()))
        wide = made.rebound(one_column(DoubleType()))
        assert verdicts(made, FloatType(), FLOAT_TENTH)[0] is old_row
        assert verdicts(wide, FloatType(), FLOAT_TENTH)[0] is old_row
        assert verdicts(wide, DoubleType(), 0.1)[0] is not old_row


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LongType(), IntegerType()),
        (DoubleType(), FloatType()),
        (DecimalType(9, 2), DecimalType(5, 2)),
        (DecimalType(5, 2), DecimalType(9, 3)),
        (IntegerType(), DoubleType()),
        (IntegerType(), DecimalType(18, 0)),
        (IntegerType(), StringType()),
        (FloatType(), DecimalType(9, 2)),
        (DateType(), TimestampType()),
        (TimestampType(), TimestamptzType()),
        (StringType(), BinaryType()),
    ],
    ids=str,
)
def test_p16_a_filter_on_a_column_that_was_retyped_otherwise_is_refused(old: IcebergType, new: IcebergType) -> None:
    made = parse_filter("x is not null", one_column(old))
    with pytest.raises(InvalidInput, match=f"from {re.escape(str(old))} to {re.escape(str(new))}"):
        made.rebound(one_column(new))


def test_p16_more_digits_are_refused_where_a_result_would_be_rounded_otherwise() -> None:
    """1 / 3.00 has as many digits as the divisor may have, so that another rounding would select other rows."""
    for text in ("1 / x > 0.33", "x * x * x * x > 7", "cast(1 as decimal(20, 10)) / nullif(x, 0) = 7"):
        made = parse_filter(text, one_column(DecimalType(5, 2)))
        with pytest.raises(InvalidInput, match=r"x of the filter .* rounded otherwise"):
            made.rebound(one_column(DecimalType(38, 2)))
    same = parse_filter("x / 4 = 1.75", one_column(DecimalType(5, 2))).rebound(one_column(DecimalType(9, 2)))
    assert verdicts(same, DecimalType(9, 2), Decimal("7.00"))[0]


def test_p16_a_nested_column_and_a_bucket_follow_when_they_are_widened() -> None:
    def nested(kind: IcebergType) -> Schema:
        return Schema(NestedField(1, "s", StructType(NestedField(2, "n", kind, required=False)), required=False))

    wide = parse_filter("s.n < 3000000000", nested(IntegerType())).rebound(nested(LongType()))
    rows = pa.table({"s": [{"n": 2**31}, {"n": 2**32}, {"n": None}]})
    assert wide.mask(rows).to_pylist() == [True, False, False]
    for kind in ("int", "decimal"):
        old, new, before, only_new = WIDER[kind]
        spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "x_bucket"))
        made = in_partitions(spec, [(0,), (2,)], one_column(old))
        wide, again = made.rebound(one_column(new)), in_partitions(spec, [(0,), (2,)], one_column(new))
        for value in (*before, *only_new):
            held = verdicts(again, new, value)
            assert verdicts(wide, new, value) == held
            if value in before:
                assert verdicts(made, old, value) == held


def test_thousands_of_ors_are_no_problem() -> None:
    text = " or ".join(f"id = {number}" for number in range(3000))
    made = parse_filter(text, SCHEMA)
    assert made.mask(table([{"id": 2999}, {"id": 3000}])).to_pylist() == [True, False]
    assert may_match(made.may)(lambda _: Facts())
    assert not must_match(made.must)(lambda _: Facts())


def test_rows_may_come_in_other_arrow_types_of_the_same_family() -> None:
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "name": pa.array(["a", "b"]).dictionary_encode(),
            "ts": pa.array([0, 86_400], pa.timestamp("s", "America/New_York")),
        }
    )
    assert parse_filter("id = 2 and name = 'b' and ts = '1970-01-02'", SCHEMA).mask(rows).to_pylist() == [False, True]


# Against a slow evaluator that is plain to see through


@dataclass(frozen=True)
class Expression:
    """A piece of SQL and what it comes to on a row; None is NULL."""

    sql: str
    value: Callable[[Row], Any]


def compare(left: Any, right: Any) -> int | None:
    """Spark's order of two values: NaN is the greatest number, NULL is unknown."""
    if left is None or right is None:
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) - math.isnan(right)
    return int(left > right) - int(left < right)


COMPARISONS: dict[str, Callable[[int], bool]] = {
    "=": lambda order: order == 0,
    "<>": lambda order: order != 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


def kleene_and(left: Any, right: Any) -> Any:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def negate(value: Any) -> Any:
    return None if value is None else not value


def column(name: str) -> Expression:
    parts = name.split(".")

    def read(row: Row) -> Any:
        value: Any = row
        for part in parts:
            value = None if value is None else value[part]
        return value

    return Expression(name, read)


def moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


MOMENTS = ["1969-12-31 23:59:59.999999", "1970-01-01 00:00:00", "2026-11-01 12:00:00", "2026-11-02 00:00:00"]
DAYS = ["1969-12-31", "1970-01-01", "2026-11-01", "2026-11-02"]
TEXTS = ["", "a", "ab", "abc", "abd", "b", "é", "z%"]
NUMBERS = [-3, -1, 0, 1, 2, 3, 7]
LITERALS: dict[str, list[tuple[str, Any]]] = {
    "number": [
        *((str(number), number) for number in NUMBERS),
        ("2.5", Decimal("2.5")),
        ("1.005", Decimal("1.005")),
        ("-0.1", Decimal("-0.1")),
        ("1e0", 1.0),
        ("2.5e0", 2.5),
        ("99999999999999999999", 99999999999999999999),
        ("cast('NaN' as double)", NAN),
        ("cast('Infinity' as double)", math.inf),
        ("null", None),
    ],
    "text": [*((f"'{text}'", text) for text in TEXTS), ("null", None)],
    "day": [*((f"'{text}'", dt.date.fromisoformat(text)) for text in DAYS), ("null", None)],
    "moment": [*((f"'{text}'", moment(text)) for text in [*MOMENTS, *DAYS]), ("null", None)],
    "truth": [("true", True), ("false", False), ("null", None)],
}
COLUMNS: dict[str, list[str]] = {
    "number": ["id", "small", "f", "d", "price", "s.x"],
    "text": ["name", "s.y"],
    "day": ["day"],
    "moment": ["ts"],
    "truth": ["flag"],
}
POOLS: dict[str, list[Any]] = {
    "id": [*NUMBERS, 2**63 - 1, -(2**63)],
    "small": NUMBERS,
    "f": [NAN, -1.0, 0.0, -0.0, 1.0, 2.5, 0.10000000149011612, math.inf],
    "d": [NAN, -1.0, 0.0, -0.0, 1.0, 2.5, 0.1, -math.inf, math.inf],
    "name": TEXTS,
    "flag": [True, False],
    "price": [Decimal(text) for text in ("-1.00", "0.00", "1.00", "1.01", "2.50", "7.00")],
    "day": [dt.date.fromisoformat(text) for text in DAYS],
    "ts": [moment(text) for text in MOMENTS],
    "s.x": NUMBERS,
    "s.y": TEXTS,
}
CELLS: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.sampled_from([None, *pool]) for name, pool in POOLS.items() if "." not in name},
    "s": st.one_of(
        st.none(),
        st.fixed_dictionaries({"x": st.sampled_from([None, *NUMBERS]), "y": st.sampled_from(TEXTS)}),
    ),
}
rows_strategy = st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=5)


@st.composite
def values(draw: st.DrawFn, family: str) -> Expression:
    """Something that has a value of one family."""
    base = column(draw(st.sampled_from(COLUMNS[family])))
    how = draw(st.sampled_from(["column", "column", "column", "derived"]))
    if how == "column":
        return base
    if family == "number":
        text = column("name")
        return Expression("length(name)", lambda row: None if text.value(row) is None else len(text.value(row)))
    if family == "text":
        return Expression(
            f"upper({base.sql})", lambda row: None if base.value(row) is None else base.value(row).upper()
        )
    if family == "day":
        ts = column("ts")
        return Expression("date(ts)", lambda row: None if ts.value(row) is None else ts.value(row).date())
    fallback = draw(st.sampled_from([each for each in LITERALS[family] if each[1] is not None]))
    return Expression(
        f"coalesce({base.sql}, {fallback[0]})" if family == "truth" else f"coalesce({base.sql}, {base.sql})",
        lambda row: fallback[1] if family == "truth" and base.value(row) is None else base.value(row),
    )


@st.composite
def comparisons(draw: st.DrawFn) -> Expression:
    family = draw(st.sampled_from(list(COLUMNS)))
    return draw(compared(draw(values(family)), family))


@st.composite
def compared(draw: st.DrawFn, left: Expression, family: str) -> Expression:
    text, constant = draw(st.sampled_from(LITERALS[family]))
    op = draw(st.sampled_from([*COMPARISONS, "<=>"]))
    if op == "<=>":

        def null_safe(row: Row) -> bool:
            value = left.value(row)
            return (value is None and constant is None) or compare(value, constant) == 0

        return Expression(f"{left.sql} <=> {text}", null_safe)

    def decide(order: int | None) -> bool | None:
        return None if order is None else COMPARISONS[op](order)

    if draw(st.booleans()):
        return Expression(f"{left.sql} {op} {text}", lambda row: decide(compare(left.value(row), constant)))
    return Expression(f"{text} {op} {left.sql}", lambda row: decide(compare(constant, left.value(row))))


@st.composite
def memberships(draw: st.DrawFn) -> Expression:
    family = draw(st.sampled_from(list(COLUMNS)))
    return draw(listed(draw(values(family)), family))


@st.composite
def listed(draw: st.DrawFn, subject: Expression, family: str) -> Expression:
    members = draw(st.lists(st.sampled_from(LITERALS[family]), min_size=1, max_size=3))
    if family == "number" and any(isinstance(member, float) for _, member in members):
        # Spark compares the whole list as doubles then.
        members = [(text, None if member is None else float(member)) for text, member in members]

    def inside(row: Row) -> bool | None:
        value = subject.value(row)
        if value is None:
            return None
        found = [compare(value, member) for _, member in members]
        if 0 in found:
            return True
        return None if None in found else False

    return Expression(f"{subject.sql} in ({', '.join(text for text, _ in members)})", inside)


@st.composite
def null_tests(draw: st.DrawFn) -> Expression:
    base = column(draw(st.sampled_from([name for names in COLUMNS.values() for name in names] + ["s"])))
    return Expression(f"{base.sql} is null", lambda row: base.value(row) is None)


@st.composite
def patterns(draw: st.DrawFn) -> Expression:
    return draw(like(column(draw(st.sampled_from(COLUMNS["text"])))))


@st.composite
def like(draw: st.DrawFn, base: Expression) -> Expression:
    prefix = draw(st.sampled_from(["", "a", "ab", "abc"]))
    rest = draw(st.sampled_from(["", "%", "_", "%b"]))

    def matches(row: Row) -> bool | None:
        text = base.value(row)
        if text is None:
            return None
        tail = text[len(prefix) :]
        fits = {"": tail == "", "%": True, "_": len(tail) == 1, "%b": tail.endswith("b")}
        return bool(text.startswith(prefix) and fits[rest])

    return Expression(f"{base.sql} like '{prefix}{rest}'", matches)


@st.composite
def years(draw: st.DrawFn) -> Expression:
    return draw(yearly(column(draw(st.sampled_from(["ts", "day"])))))


@st.composite
def yearly(draw: st.DrawFn, base: Expression) -> Expression:
    year = draw(st.sampled_from([1969, 1970, 2026]))
    op = draw(st.sampled_from(list(COMPARISONS)))

    def decide(row: Row) -> bool | None:
        value = base.value(row)
        return None if value is None else COMPARISONS[op]((value.year > year) - (value.year < year))

    return Expression(f"year({base.sql}) {op} {year}", decide)


def negated(inner: Expression) -> Expression:
    return Expression(f"(not ({inner.sql}))", lambda row: negate(inner.value(row)))


def combined(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def conjunction(pair: tuple[Expression, Expression]) -> Expression:
        left, right = pair
        return Expression(f"({left.sql} and {right.sql})", lambda row: kleene_and(left.value(row), right.value(row)))

    def disjunction(pair: tuple[Expression, Expression]) -> Expression:
        left, right = pair
        return Expression(
            f"({left.sql} or {right.sql})",
            lambda row: negate(kleene_and(negate(left.value(row)), negate(right.value(row)))),
        )

    def truth(inner: Expression) -> Expression:
        return Expression(f"(({inner.sql}) is true)", lambda row: inner.value(row) is True)

    def falsehood(inner: Expression) -> Expression:
        return Expression(f"(({inner.sql}) is not false)", lambda row: inner.value(row) is not False)

    def unknown(inner: Expression) -> Expression:
        return Expression(f"(({inner.sql}) is null)", lambda row: inner.value(row) is None)

    pairs = st.tuples(parts, parts)
    return st.one_of(
        pairs.map(conjunction),
        pairs.map(disjunction),
        parts.map(negated),
        parts.map(truth),
        parts.map(falsehood),
        parts.map(unknown),
    )


conditions = st.recursive(
    st.one_of(comparisons(), comparisons(), memberships(), null_tests(), patterns(), years()), combined, max_leaves=4
)


@settings(max_examples=300, deadline=None)
@given(conditions, rows_strategy)
def test_a_mask_is_what_row_by_row_evaluation_gives(condition: Expression, rows: list[Row]) -> None:
    mask = parse_filter(condition.sql, SCHEMA).mask(table(rows))
    assert mask.to_pylist() == [condition.value(row) is True for row in rows], condition.sql


# What filters say to statistics

# Pruning is decided where few values meet few constants, so these cases are about one column and few rows.


@dataclass(frozen=True)
class Case:
    condition: Expression
    rows: list[Row]


FAMILY = {name: family for family, names in COLUMNS.items() for name in names}


@st.composite
def leaves_about(draw: st.DrawFn, name: str) -> Expression:
    family = FAMILY[name]
    subject = column(name)
    kinds = ["compare", "compare", "in", "null", *(["like"] if family == "text" else [])]
    kinds += ["period"] if family in ("day", "moment") else []
    kind = draw(st.sampled_from(kinds))
    if kind == "compare":
        return draw(compared(subject, family))
    if kind == "in":
        return draw(listed(subject, family))
    if kind == "like":
        return draw(like(subject))
    if kind == "period":
        return draw(st.one_of(yearly(subject), compared(dated(subject), "day")))
    return Expression(f"{name} is null", lambda row: subject.value(row) is None)


def dated(subject: Expression) -> Expression:
    def read(row: Row) -> Any:
        value = subject.value(row)
        return value.date() if isinstance(value, dt.datetime) else value

    return Expression(f"date({subject.sql})", read)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(list(FAMILY)))
    condition = draw(st.recursive(leaves_about(name), combined, max_leaves=2))
    top = name.split(".")[0]
    found = draw(st.lists(CELLS[top], min_size=1, max_size=3))
    return Case(condition, [{**dict.fromkeys(CELLS), top: cell} for cell in found])


def cells(field_id: int, rows: list[Row]) -> list[Any]:
    return [column(str(SCHEMA.find_column_name(field_id))).value(row) for row in rows]


DESCRIBED = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12)


def described(rows: list[Row], *, nulls: bool, nans: bool, bounds: bool) -> DataFile:
    """A file of these rows, with some kinds of statistics left out, as writers do."""
    lower, upper, counts, null_counts, nan_counts = {}, {}, {}, {}, {}
    for field_id in DESCRIBED:
        if str(SCHEMA.find_column_name(field_id)).split(".")[0] not in rows[0]:
            continue
        found = cells(field_id, rows)
        known = [cell for cell in found if cell is not None and cell == cell]
        kind = SCHEMA.find_type(field_id)
        counts[field_id] = len(found)
        if nulls:
            null_counts[field_id] = sum(cell is None for cell in found)
        if nans and isinstance(kind, FloatType | DoubleType):
            nan_counts[field_id] = sum(cell is not None and cell != cell for cell in found)
        if bounds and known:
            lower[field_id], upper[field_id] = to_bytes(kind, min(known)), to_bytes(kind, max(known))  # type: ignore[arg-type]
    return DataFile(
        "f.parquet", len(rows), 1, value_counts=counts, null_value_counts=null_counts, nan_value_counts=nan_counts,
        lower_bounds=lower, upper_bounds=upper,
    )  # fmt: skip


def check_sound(made: Filter, matching: list[bool], lookup: Lookup) -> None:
    if any(matching):
        assert may_match(made.may)(lookup), made.text
    if must_match(made.must)(lookup):
        assert all(matching), made.text


def every_leaf_about(name: str) -> list[Expression]:
    """Every comparison of one column with every constant, plain and negated, and lists with NULL in them."""
    subject, found = column(name), []
    for text, constant in LITERALS[FAMILY[name]]:
        for op, decide in COMPARISONS.items():

            def value(row: Row, constant: Any = constant, decide: Callable[[int], bool] = decide) -> bool | None:
                order = compare(subject.value(row), constant)
                return None if order is None else decide(order)

            found.append(Expression(f"{name} {op} {text}", value))

        def inside(row: Row, constant: Any = constant) -> bool | None:
            return True if compare(subject.value(row), constant) == 0 else None

        found.append(Expression(f"{name} in ({text}, null)", inside))
    return [*found, *map(negated, found)]


@pytest.mark.parametrize("name", sorted(FAMILY))
def test_no_pair_of_values_fools_the_statistics(name: str) -> None:
    top = name.split(".", maxsplit=1)[0]
    pool = [None, *POOLS[name]]

    def row(cell: Any) -> Row:
        return {top: {"x": None, "y": "", name[2:]: cell}} if top == "s" else {top: cell}

    groups = [[row(one), row(other)] for one in pool for other in pool]
    files = [described(rows, nulls=nulls, nans=True, bounds=True) for rows in groups for nulls in (True, False)]
    for condition in every_leaf_about(name):
        made = parse_filter(condition.sql, SCHEMA)
        may, must = may_match(made.may), must_match(made.must)
        facts = FileFacts(SCHEMA, made.field_ids, {})
        for position, file in enumerate(files):
            matching = [condition.value(row) is True for row in groups[position // 2]]
            lookup = facts.of_file(file)
            assert may(lookup) or not any(matching), (condition.sql, groups[position // 2])
            assert all(matching) or not must(lookup), (condition.sql, groups[position // 2])


@settings(max_examples=300, deadline=None)
@given(cases(), st.booleans(), st.booleans(), st.booleans())
def test_statistics_never_drop_a_matching_file_nor_claim_a_row_that_does_not_match(
    case: Case, nulls: bool, nans: bool, bounds: bool
) -> None:
    condition, rows = case.condition, case.rows
    made = parse_filter(condition.sql, SCHEMA)
    matching = [condition.value(row) is True for row in rows]
    file = described(rows, nulls=nulls, nans=nans, bounds=bounds)
    check_sound(made, matching, FileFacts(SCHEMA, made.field_ids, {}).of_file(file))


SPECS: list[tuple[int, Transform[Any, Any]]] = [
    (1, IdentityTransform()), (1, BucketTransform(3)), (1, TruncateTransform(4)),
    (2, IdentityTransform()), (3, IdentityTransform()), (4, IdentityTransform()),
    (5, IdentityTransform()), (5, TruncateTransform(2)), (5, BucketTransform(3)),
    (6, IdentityTransform()), (7, TruncateTransform(100)), (7, BucketTransform(2)),
    (8, IdentityTransform()), (8, MonthTransform()), (8, YearTransform()), (8, BucketTransform(3)),
    (9, DayTransform()), (9, HourTransform()), (9, MonthTransform()), (9, YearTransform()), (9, BucketTransform(4)),
    (11, IdentityTransform()),
]  # fmt: skip


def internal(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return value.toordinal() - dt.date(1970, 1, 1).toordinal()
    return value


def partition_of(row: Row, fields: list[tuple[int, Transform[Any, Any]]]) -> tuple[Any, ...]:
    return tuple(
        transform.transform(SCHEMA.find_type(field_id))(internal(cells(field_id, [row])[0]))
        for field_id, transform in fields
    )


def _known_of(known: dict[int, Facts], unknown: Facts, field_id: int) -> Facts:
    return known.get(field_id, unknown)


@settings(max_examples=600, deadline=None)
@given(cases(), st.data())
def test_partitions_never_drop_a_matching_file_nor_claim_a_row_that_does_not_match(
    case: Case, data: st.DataObject
) -> None:
    condition, rows = case.condition, case.rows
    ids = parse_filter(condition.sql, SCHEMA).field_ids
    about = [each for each in SPECS if each[0] in ids]
    assume(about)
    fields = data.draw(st.lists(st.sampled_from(about), min_size=1, max_size=2))
    made = parse_filter(condition.sql, SCHEMA)
    spec = PartitionSpec(
        *(PartitionField(source, 1000 + i, transform, f"p{i}") for i, (source, transform) in enumerate(fields))
    )
    facts = FileFacts(SCHEMA, made.field_ids, {spec.spec_id: spec})
    unknown = Facts()
    partitions = [partition_of(row, fields) for row in rows]
    for partition in partitions:
        inside = [row for row, other in zip(rows, partitions, strict=True) if repr(other) == repr(partition)]
        known = facts.of_partition(spec.spec_id, partition)
        matching = [condition.value(row) is True for row in inside]
        check_sound(made, matching, partial(_known_of, known, unknown))
    summaries = summarize_partitions(partitions, spec, SCHEMA)
    check_sound(made, [condition.value(row) is True for row in rows], facts.of_manifest(spec.spec_id, summaries))


@pytest.mark.parametrize(
    ("text", "lower", "upper", "may", "must"),
    [
        ("id = 5", 6, 9, False, False),
        ("id = 5", 5, 5, True, True),
        ("id <> 5", 5, 5, False, False),
        ("id <> 5", 6, 9, True, True),
        ("id in (1, 20)", 6, 9, False, False),
        ("id > 3.5", 1, 3, False, False),
        ("id > 3.5", 4, 9, True, True),
        ("id = 3.5", 1, 9, False, False),
        ("not (id > 5)", 6, 9, False, False),
        ("id between 5 and 7 or id = 100", 8, 9, False, False),
        ("id < 99999999999999999999", 8, 9, True, True),
        ("date(ts) = '1970-01-02'", 86_400_000_000, 172_799_999_999, True, True),
        ("date(ts) = '1970-01-02'", 172_800_000_000, 172_800_000_001, False, False),
        ("year(ts) > 1970", 0, 31_535_999_999_999, False, False),
        ("id % 2 = 0 and id = 5", 6, 9, False, False),
        ("id % 2 = 0", 6, 9, True, False),
        ("id is null", 6, 9, False, False),
    ],
)
def test_bounds_decide(text: str, lower: int, upper: int, may: bool, must: bool) -> None:
    made = parse_filter(text, SCHEMA)
    (field_id,) = made.field_ids
    low, high = to_bytes(LongType(), lower), to_bytes(LongType(), upper)
    file = DataFile(
        "f", 4, 1, value_counts={field_id: 4}, null_value_counts={field_id: 0}, lower_bounds={field_id: low},
        upper_bounds={field_id: high},
    )  # fmt: skip
    lookup = FileFacts(SCHEMA, made.field_ids, {}).of_file(file)
    assert (may_match(made.may)(lookup), must_match(made.must)(lookup)) == (may, must)


def test_a_file_that_may_hold_nan_is_kept_for_greater_than() -> None:
    made = parse_filter("d > 5", SCHEMA)
    facts = FileFacts(SCHEMA, made.field_ids, {})
    silent = DataFile("f", 4, 1, null_value_counts={4: 0}, upper_bounds={4: to_bytes(DoubleType(), 2.0)})
    sure = replace(silent, nan_value_counts={4: 0})
    assert may_match(made.may)(facts.of_file(silent))
    assert not may_match(made.may)(facts.of_file(sure))


def test_bounds_of_a_column_widened_since_are_read() -> None:
    made = parse_filter("id > 5", SCHEMA)
    four_bytes = DataFile("f", 4, 1, upper_bounds={1: to_bytes(IntegerType(), 3)})
    assert not may_match(made.may)(FileFacts(SCHEMA, made.field_ids, {}).of_file(four_bytes))


@given(st.text(max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_text_is_either_a_filter_or_refused(text: str) -> None:
    try:
        made = parse_filter(text, SCHEMA)
    except InvalidInput:
        return
    assume(made.text)
    assert may_match(made.may)(lambda _: Facts()) or not must_match(made.must)(lambda _: Facts())
