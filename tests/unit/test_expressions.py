"""SQL expressions as values, what they become in a column, and filters made of values instead of text."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import subprocess
import sys
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
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
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import InvalidInput, SchemaMismatch, Unsupported
from frazil.expr import (
    Facts,
    Lit,
    Share,
    assigned,
    in_partitions,
    lit,
    may_match,
    must_match,
    near_keys,
    parse_expression,
    parse_filter,
)
from frazil.expr.conditions import MOST_LISTED
from frazil.format.partitions import arrow_transform


def field(field_id: int, name: str, kind: Any, required: bool = False) -> NestedField:
    return NestedField(field_id, name, kind, required=required)


SCHEMA = Schema(
    field(1, "i", IntegerType()),
    field(2, "l", LongType()),
    field(3, "f", FloatType()),
    field(4, "d", DoubleType()),
    field(5, "dec", DecimalType(9, 2)),
    field(6, "s", StringType()),
    field(7, "day", DateType()),
    field(8, "ts", TimestamptzType()),
    field(9, "ntz", TimestampType()),
    field(10, "t", TimeType()),
    field(11, "u", UUIDType()),
    field(12, "fx", FixedType(2)),
    field(13, "bin", BinaryType()),
    field(14, "b", BooleanType()),
    field(15, "must", LongType(), required=True),
    field(16, "st", StructType(field(17, "x", IntegerType()))),
    field(18, "dotted.name", StringType()),
)
AT = dt.datetime(2026, 11, 1, 12, 30, tzinfo=dt.UTC)
ROW: dict[str, Any] = {
    "i": 7, "l": 2**40, "f": 0.5, "d": 0.25, "dec": Decimal("1.25"), "s": "text", "day": dt.date(2026, 11, 1),
    "ts": AT, "ntz": AT.replace(tzinfo=None), "t": dt.time(1, 2, 3), "u": uuid.UUID(int=5), "fx": b"ab",
    "bin": b"\x00\xff", "b": True, "must": 1, "st": {"x": 9}, "dotted.name": "dot",
}  # fmt: skip
ARROW = schema_to_pyarrow(SCHEMA, include_field_ids=False)


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    arrays = [_array([row.get(each.name) for row in rows], each.type) for each in ARROW]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)


def _array(values: list[Any], kind: Any) -> Any:
    if isinstance(kind, pa.UuidType):
        raw = [None if value is None else value.bytes for value in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(raw, pa.binary(16)))
    return pa.array(values, kind)


ROWS = batch(ROW, {"must": 2})


def value(text: str, rows: pa.RecordBatch = ROWS) -> list[Any]:
    return list(parse_expression(text, SCHEMA).evaluate(rows).to_pylist())


def stored(text: str, column: str, rows: pa.RecordBatch = ROWS) -> Any:
    return assigned(parse_expression(text, SCHEMA), SCHEMA.find_field(column))(rows)


# Expressions


def test_an_expression_has_a_value_on_each_row() -> None:
    assert value("i + 1") == [8, None]
    assert value("upper(s) || '!'") == ["TEXT!", None]
    assert value("st.x * 2") == [18, None]
    assert value("`dotted.name`") == ["dot", None]
    assert value("case when b then 'yes' else 'no' end") == ["yes", "no"]
    assert value("3") == [3, 3]
    assert value("i > 5") == [True, None]


def test_an_expression_knows_what_it_reads() -> None:
    made = parse_expression("i + l", SCHEMA)
    assert (made.field_ids, made.type) == (frozenset({1, 2}), pa.int64())
    assert parse_expression("'x'", SCHEMA).field_ids == frozenset()


def test_an_expression_pickles() -> None:
    again = pickle.loads(pickle.dumps(parse_expression("i + 1", SCHEMA)))
    assert again.evaluate(ROWS).to_pylist() == [8, None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("i +", "The expression 'i \\+' is not valid SQL"),
        ("nope + 1", "The expression names the column 'nope'"),
        ("count(i)", "The expression uses the aggregate"),
        ("(select 1)", "subquery"),
        ("now()", "whose value changes while the expression is used"),
        ('"s"', "double quotes"),
        ("delete from t", "expression"),
    ],
)
def test_a_wrong_expression_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        parse_expression(text, SCHEMA)
    assert "filter" not in caught.value.problem.lower()


def test_what_fails_on_a_row_speaks_of_the_expression() -> None:
    with pytest.raises(InvalidInput, match="Division by zero in some row"):
        value("1 / (i - 7)")
    with pytest.raises(InvalidInput, match="Numeric overflow in some row"):
        value("l * 9223372036854775807")


def test_only_text_is_sql() -> None:
    with pytest.raises(InvalidInput, match="SQL text"):
        parse_expression(3, SCHEMA)  # type: ignore[arg-type]
    assert lit("x") == Lit("x")
    assert lit(lit("x")) == Lit("x")


# Store assignment


@pytest.mark.parametrize(
    ("text", "column", "found"),
    [
        ("i", "l", 7),
        ("i * 2", "i", 14),
        ("2147483647", "i", 2147483647),
        ("i", "d", 7.0),
        ("i", "f", 7.0),
        ("i", "dec", Decimal("7.00")),
        ("i", "s", "7"),
        ("3.0", "i", 3),
        ("d * 4", "i", 1),
        ("d", "f", 0.25),
        ("0.1", "d", 0.1),
        ("d", "dec", Decimal("0.25")),
        ("1.1", "dec", Decimal("1.10")),
        ("dec", "d", 1.25),
        ("dec", "s", "1.25"),
        ("b", "s", "true"),
        ("day", "s", "2026-11-01"),
        ("ts", "s", "2026-11-01 12:30:00"),
        ("day", "ts", dt.datetime(2026, 11, 1, tzinfo=dt.UTC)),
        ("day", "ntz", AT.replace(hour=0, minute=0, tzinfo=None)),
        ("ts", "ntz", AT.replace(tzinfo=None)),
        ("ntz", "ts", AT),
        ("to_date(ts)", "day", dt.date(2026, 11, 1)),
        ("cast(day as timestamp)", "day", dt.date(2026, 11, 1)),
        ("'2026-12-24'", "day", dt.date(2026, 12, 24)),
        ("'2026-12-24 10:00:00+02:00'", "ts", dt.datetime(2026, 12, 24, 8, tzinfo=dt.UTC)),
        ("'10:00:00'", "t", dt.time(10)),
        ("'00000000-0000-0000-0000-000000000007'", "u", uuid.UUID(int=7)),
        ("u", "u", uuid.UUID(int=5)),
        ("X'6162'", "fx", b"ab"),
        ("fx", "bin", b"ab"),
        ("not b", "b", False),
        ("NULL", "i", None),
        ("nullif(i, 7)", "i", None),
        ("cast('12' as int)", "i", 12),
    ],
)
def test_values_are_stored_as_the_column_wants_them(text: str, column: str, found: Any) -> None:
    made = stored(text, column, batch(ROW))
    assert made.type == ARROW.field(column).type
    assert made.to_pylist() == [found]


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("'7'", "i"),
        ("s", "i"),
        ("s", "day"),
        ("s", "u"),
        ("s", "b"),
        ("i", "b"),
        ("b", "i"),
        ("i", "day"),
        ("day", "i"),
        ("bin", "s"),
        ("s", "bin"),
        ("d", "s"),
        ("t", "ts"),
        ("u", "s"),
    ],
)
def test_types_that_never_fit_are_refused_at_once(text: str, column: str) -> None:
    with pytest.raises(SchemaMismatch, match="CAST"):
        assigned(parse_expression(text, SCHEMA), SCHEMA.find_field(column))


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("l", "i"),
        ("l * 100000", "f"),
        ("9007199254740993", "d"),
        ("d", "i"),
        ("1e300", "l"),
        ("1e300", "f"),
        ("i / 3", "dec"),
        ("1.005", "dec"),
        ("12345678.9", "dec"),
        ("i * 10000000", "dec"),
        ("1e300", "dec"),
        ("ts", "day"),
        ("X'616263'", "fx"),
        ("'soon'", "day"),
        ("'2026-12-24 10:00:00+02:00'", "ntz"),
        ("'not a uuid'", "u"),
    ],
)
def test_values_that_would_lose_something_are_refused(text: str, column: str) -> None:
    with pytest.raises(SchemaMismatch, match="does not fit"):
        stored(text, column)


def test_the_value_that_does_not_fit_is_shown() -> None:
    rows = batch(*({**ROW, "l": number} for number in (1, 2, 3_000_000_000, 4)))
    with pytest.raises(SchemaMismatch, match="'i' is int, and the value 3000000000 of 'l' does not fit"):
        stored("l", "i", rows)


def test_a_null_in_a_required_column_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="cannot be set to NULL"):
        stored("NULL", "must")
    with pytest.raises(SchemaMismatch, match="cannot be set to NULL"):
        stored("cast(NULL as bigint)", "must")
    with pytest.raises(SchemaMismatch, match="null in some row"):
        stored("i", "must")
    assert stored("coalesce(i, 0)", "must").to_pylist() == [7, 0]


def test_nested_columns_are_not_set_by_expressions() -> None:
    for text in ("st", "NULL"):
        with pytest.raises(Unsupported, match="one by one"):
            stored(text, "st")
    with pytest.raises(Unsupported):
        stored("st", "s")


# Filters made of values


def spec(*fields: tuple[int, Transform[Any, Any]]) -> PartitionSpec:
    return PartitionSpec(*(PartitionField(source, 1000 + i, how, f"p{i}") for i, (source, how) in enumerate(fields)))


TRANSFORMS: list[tuple[int, Transform[Any, Any]]] = [
    (1, IdentityTransform()), (1, BucketTransform(3)), (1, TruncateTransform(5)),
    (2, BucketTransform(3)), (2, TruncateTransform(7)), (3, IdentityTransform()), (4, IdentityTransform()),
    (5, IdentityTransform()), (5, BucketTransform(2)), (5, TruncateTransform(50)),
    (6, IdentityTransform()), (6, BucketTransform(3)), (6, TruncateTransform(2)),
    (7, IdentityTransform()), (7, BucketTransform(3)), (7, DayTransform()), (7, MonthTransform()), (7, YearTransform()),
    (8, IdentityTransform()), (8, BucketTransform(3)), (8, HourTransform()), (8, DayTransform()), (8, MonthTransform()),
    (9, DayTransform()), (9, BucketTransform(3)), (10, IdentityTransform()), (10, BucketTransform(3)),
    (11, IdentityTransform()), (11, BucketTransform(3)), (12, IdentityTransform()), (12, BucketTransform(3)),
    (13, IdentityTransform()), (13, BucketTransform(3)), (13, TruncateTransform(1)), (14, IdentityTransform()),
]  # fmt: skip


def varied() -> pa.RecordBatch:
    texts = ["", "a", "ab", "abc", "b", "it's", "back\\slash", "é\n", None]
    rows = []
    for i in range(40):
        at = AT + dt.timedelta(hours=11 * i)
        rows.append(
            {
                "i": i - 20, "l": 3 * i - 50, "f": [0.5, math.nan, -1.5, math.inf][i % 4],
                "d": [0.1, -0.0, 1e300][i % 3],
                "dec": Decimal(i - 20) / 4, "s": texts[i % 9], "day": at.date() + dt.timedelta(days=40 * i), "ts": at,
                "ntz": at.replace(tzinfo=None), "t": dt.time(i % 24, i), "u": uuid.UUID(int=i % 7),
                "fx": bytes([i % 5, 255]),
                "bin": bytes([255, i % 3])[: i % 3], "b": bool(i % 2), "must": i,
            }
            if i % 10
            else {"must": i}
        )  # fmt: skip
    return batch(*rows)


@pytest.mark.parametrize(("source", "transform"), TRANSFORMS, ids=str)
def test_the_rows_of_partitions_are_selected_exactly(source: int, transform: Transform[Any, Any]) -> None:
    rows = varied()
    name = SCHEMA.find_field(source).name
    values = arrow_transform(transform, SCHEMA.find_type(source))(rows.column(name)).to_pylist()
    for wanted in ([values[3]], [values[0]], [values[1], values[2], values[0]]):
        made = in_partitions(spec((source, transform)), [(each,) for each in wanted], SCHEMA)
        keys = {repr(each + 0.0 if isinstance(each, float) else each) for each in wanted}
        expected = [repr(each + 0.0 if isinstance(each, float) else each) in keys for each in values]
        assert made.mask(rows).to_pylist() == expected, made.text
        again = pickle.loads(pickle.dumps(made))
        assert again.mask(rows).to_pylist() == expected
        if not made.built:
            assert parse_filter(made.text, SCHEMA, case_sensitive=True).mask(rows).to_pylist() == expected
        # There is no way to write a bucket or infinity in SQL.
        assert made.built == ((isinstance(transform, BucketTransform) and wanted != [None]) or math.inf in wanted)


def test_partitions_of_several_fields_and_voids() -> None:
    rows = varied()
    how = spec((1, BucketTransform(2)), (2, VoidTransform()), (6, IdentityTransform()))
    made = in_partitions(how, [(0, None, "a"), (1, None, None)], SCHEMA)
    buckets = arrow_transform(BucketTransform(2), IntegerType())(rows.column("i")).to_pylist()
    pairs = list(zip(buckets, rows.column("s").to_pylist(), strict=True))
    assert made.mask(rows).to_pylist() == [pair in [(0, "a"), (1, None)] for pair in pairs]
    assert in_partitions(spec((2, VoidTransform())), [(None,)], SCHEMA).is_true


def test_a_partition_by_a_column_that_is_gone_is_refused() -> None:
    with pytest.raises(Unsupported, match="99"):
        in_partitions(spec((99, IdentityTransform())), [(1,)], SCHEMA)


def test_buckets_prune_by_partition() -> None:
    made = in_partitions(spec((1, BucketTransform(8))), [(2,), (5,)], SCHEMA)
    may, must = may_match(made.may), must_match(made.must)

    def judged(low: int, high: int, count: int = 8, nulls: Share = Share.NONE) -> tuple[bool, bool]:
        facts = Facts(nulls=nulls, nans=Share.NONE, buckets=((count, low, high),))
        return may(lambda _: facts), must(lambda _: facts)

    assert judged(2, 2) == judged(5, 5) == (True, True)
    assert judged(3, 4) == judged(6, 7) == (False, False)
    assert judged(2, 5) == (True, False)
    assert judged(3, 3, count=16) == (True, False)  # another number of buckets proves nothing
    assert judged(2, 2, nulls=Share.UNKNOWN) == (True, False)
    assert judged(2, 2, nulls=Share.ALL) == (False, False)
    assert (may(lambda _: Facts()), must(lambda _: Facts())) == (True, False)


def test_few_keys_are_listed_and_many_are_a_range() -> None:
    few = near_keys(SCHEMA, {2: pa.array([5, 3, 5]), 6: pa.array(["it's", "b", "b"])})
    assert few.text == "(`l` IN (5, 3)) AND (`s` IN ('it\\'s', 'b'))"
    many = near_keys(SCHEMA, {2: pa.array(range(MOST_LISTED + 1))})
    assert many.text == f"(`l` >= 0) AND (`l` <= {MOST_LISTED})"
    assert near_keys(SCHEMA, {2: pa.array([], pa.int64())}).may is False


@pytest.mark.parametrize("name", ["i", "l", "dec", "s", "day", "ts", "ntz", "t", "u", "fx", "bin", "b"])
@pytest.mark.parametrize("most", [0, 1000])
def test_keys_of_every_type_are_near_themselves(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from frazil.expr import conditions

    monkeypatch.setattr(conditions, "MOST_LISTED", most)
    rows = batch(ROW, {**dict.fromkeys(ROW), "must": 1})
    array: Any = rows.column(name).slice(0, 1)
    plain = array.storage if isinstance(array, pa.ExtensionArray) else array
    found = near_keys(SCHEMA, {SCHEMA.find_field(name).field_id: plain})
    assert found.mask(rows).to_pylist() == [True, False]


def test_importing_frazil_loads_neither_sqlglot_nor_pyspark() -> None:
    program = "import sys, frazil.expr; print([each for each in ('sqlglot', 'pyspark') if each in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
