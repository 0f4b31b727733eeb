"""Every operation of filters and expressions: Spark's answer is the one of the evaluator over Arrow, row by row."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.errors import InvalidInput, Unsupported
from frazil.expr import (
    TIMESTAMP,
    Call,
    Column,
    Expression,
    Filter,
    parse_expression,
    parse_filter,
    spark_workers,
    sql_type,
)
from frazil.format.schemas import arrow_schema, to_schema
from frazil.on_spark import columns, session, types

SCHEMA = to_schema(
    "row int not null, i int, n bigint, j int, f float, d double, e double, t string, s string, b boolean, c boolean, "
    "day date, other date, at timestamp, clock timestamp_ntz, moment timestamp, time time, id uuid, "
    "fix fixed(3), bin binary, p decimal(10,2), q decimal(38,10), r decimal(18,6), w decimal(38,0), z decimal(38,38), "
    "nest struct<a: int, b: struct<x: string>>, tags array<string>"
)
ROWS = 320
VALUES: dict[str, list[Any]] = {
    "i": [None, 0, 1, -1, 3, 7, 2**31 - 1, -(2**31), 42, 100],
    "n": [None, 0, 1, -1, 5, 2**63 - 1, -(2**63), 2**53 + 1, 10**18, -7, 300],
    "j": [None, 0, 1, -1, 2, -3, 7],
    "f": [None, 0.0, -0.0, float("nan"), float("inf"), float("-inf"), 0.1, 1.5, -3.25, 3.4028234663852886e38, 1e-45],
    "d": [
        None,
        0.0,
        -0.0,
        float("nan"),
        float("inf"),
        float("-inf"),
        0.1,
        1.5,
        -2.5,
        1e300,
        5e-324,
        9.3e18,
        2.0**63,
        -(2.0**63),
        2147483647.9,
        -2147483648.9,
        127.5,
        3.0,
    ],
    "e": [None, 0.0, -0.0, float("nan"), 2.0, -0.5, float("inf")],
    "t": [
        None,
        "",
        " ",
        "a",
        "A",
        "abc",
        "ab%c",
        "a_c",
        "Straße",
        "ΑΣ",
        "İstanbul",
        "ﬁ",
        "x\ny",
        " 12 ",
        "12",
        "-7",
        "+3",
        "1e3",
        "NaN",
        "2024-02-29",
        "2024-02-30",
        "1969-12-31 23:59:59.999999",
        "2024-03-10T02:30:00 America/New_York",
        "true",
        "no",
        "\u00a05\u00a0",
        "٣",
        "1_0",
        "9223372036854775808",
        "0.125",
        "😀b",
        "a\\b",
        "infinity",
        "12345678901.5",
    ],
    "s": [None, "", "a", "b", "c", "😀", "%"],
    "b": [None, True, False],
    "c": [None, True, False, True],
    "day": [
        None,
        dt.date(1970, 1, 1),
        dt.date(1969, 12, 31),
        dt.date(2024, 2, 29),
        dt.date(1, 1, 1),
        dt.date(9999, 12, 31),
        dt.date(1582, 10, 4),
        dt.date(2026, 12, 31),
        dt.date(2021, 1, 3),
    ],
    "other": [None, dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1900, 2, 28)],
    "at": [
        None,
        0,
        -1,
        1,
        1710054000000000,
        1710053999999999,
        1730610000000000,
        -62135596800000000,
        253402300799999999,
        -2203891200000001,
        1709164800000000,
        -86400000001,
    ],
    "clock": [
        None,
        0,
        -1,
        1,
        1710037800000000,
        1730596800000000,
        -62135596800000000,
        253402300799999999,
        1709164800000000,
    ],
    "moment": [None, 0, -1, 1710054000000000, 5_000_000],
    "time": [None, 0, 86_399_999_999, 45_000_000_000],
    "id": [
        None,
        uuid.UUID(int=0).bytes,
        uuid.UUID(int=2**128 - 1).bytes,
        uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes,
    ],
    "fix": [None, b"\x00\x00\x00", b"abc", b"\xff\xfe\xfd"],
    "bin": [None, b"", b"\x00", b"abc", b"\xff\xfe", "é".encode()],
    "p": [
        None,
        Decimal("0.00"),
        Decimal("-0.01"),
        Decimal("99999999.99"),
        Decimal("1.50"),
        Decimal("476807.47"),
        Decimal("-3.00"),
    ],
    "q": [
        None,
        Decimal(0),
        Decimal("1.5000000000"),
        Decimal("-0.0000000001"),
        Decimal("9999999999999999999999999999.9999999999"),
        Decimal("12345678901234567890.1234567891"),
        Decimal("3"),
    ],
    "r": [None, Decimal(0), Decimal("0.000001"), Decimal("32.202983"), Decimal("-999999999999.999999"), Decimal("7")],
    "w": [None, Decimal(0), Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(3), Decimal(2**63)],
    "z": [None, Decimal(0), Decimal(1).scaleb(-38), Decimal("0.5"), Decimal("-0.3333333333")],
}

CONDITIONS = """
i > 3 | i >= 3 | i < 3 | i <= 3 | i = 3 | i <> 3 | 3 < i | i <=> 3 | i <=> NULL | i = NULL | i <=> j | i = n | i < n | i > 2.5 | i <= -0.5
i = 1.5 | i <> 1.5 | i < 3000000000 | i > 1e0 | i > 99999999999999999999 | n > -99999999999999999999 | n = 9223372036854775807
n = 9007199254740993 | n = 9007199254740993e0 | n >= 9223372036854775807.5 | i in (1, 3, null) | i in (1, 3) | i not in (1, 3) | i not in (1, null)
i in (1.0, 2.5, 7) | i in (2.5) | n in (1, 5, j) | 1 in (i, j) | i in (1e0, 42) | n in (1,2,3,4,5,6,7,8,9,10,11,12,300,-7)
d = 0.0e0 | d = -0.0e0 | d <> 0 | d < 0 | d <= 0 | d > 0 | d >= 0 | d >= -0e0 | d <= -0e0 | d = 0.1e0 | f = 0.1e0 | f = 0.1 | f > 0.1 | f <= 1.5
d = cast('NaN' as double) | d < cast('NaN' as double) | d <= cast('NaN' as double) | d >= cast('NaN' as double) | d > cast('NaN' as double)
d <> cast('NaN' as double) | d <=> cast('NaN' as double) | not (d > 1) | not (d <= 1) | not (d = 1.5) | d = e | d < e | d >= e | d <=> e | f = d | f <= d
d in (0, 1.5) | d in (-0e0) | d not in (0.0, 3) | d in (cast('nan' as double), 3) | d in (1,2,3,4,5,6,7,8,9,10,11,0) | d in (0.1e0, e) | isnan(d) | isnan(f) | isnan(i)
d between 0 and 2 | d not between 0 and 2 | d > cast('inf' as double) | d >= cast('inf' as double) | d > 5 or b | d is null | not d is null
t = 'a' | t < 'b' | t >= 'ﬁ' | t in ('a', 'A', '') | t <> '' | t <=> null | t = s | t > s | t between 'A' and 'b' | t like 'a%' | t like '%c' | t like 'a\\\\_c' | t like 'a_c'
t like '%' | t like '' | t like 'x_y' | t like '_b' | t ilike 'AB%' | t ilike 'stra_e' | t not like '%a%' | t like 'ab!%c' escape '!' | t like 'a\\\\\\\\b'
t rlike '^a' | t rlike '[0-9]+$' | t rlike '(?i)straße' | t rlike 'b$' | startswith(t, 'a') | endswith(t, s) | contains(t, s) | contains(t, '') | startswith(t, s)
b | not b | b and c | b or c | b is true | b is not true | b is false | b = c | b < c | b <=> c | b in (true, null) | null | true | false | b and null | b or null | (b and c) is true
day = '1970-01-01' | day < '1970-01-01' | day >= '2024-02-29' | day in ('2024-02-29', '0001-01-01') | day = other | day < other | day <=> other | day between '1900-01-01' and '2025'
at = '1970-01-01 00:00:00' | at > '2024-03-10 07:00:00' | at < '1970-01-01' | at >= '2024-03-10 03:00:00 America/New_York' | at in ('1970-01-01', '9999-12-31 23:59:59.999999')
clock = '1970-01-01 00:00:00' | clock > '2024-03-10 02:30:00' | clock <= '0001-01-01' | clock in ('2024-11-03 01:20:00', '1970-01-01') | at = clock | at < clock | at <=> clock
at = moment | at > moment | day < at | day = clock | at >= day | day <=> moment | at in (clock, moment) | at between clock and moment | at is null | cast(day as timestamp) = at
time = '12:30:00' | time < '12:30:00' | time in ('00:00:00', '23:59:59.999999') | id = 'f79c3e09-677c-4bbd-a479-3f349cb785e7' | id > '00000000-0000-0000-0000-000000000000'
id in ('ffffffff-ffff-ffff-ffff-ffffffffffff') | fix = X'616263' | fix > X'00' | bin = X'' | bin < X'616263' | bin in (X'00', X'FFFE') | bin = fix | bin <=> fix
p = 1.5 | p = 1.505 | p < 1.505 | p >= -0.005 | p > 99999999.99 | p > 100000000 | p < 1e2 | p = 476807.47e0 | r = 32.202983e0 | p in (1.5, 0, 1.001) | p not in (1.5) | p = i | p < n
p = r | p > q | q = 1.5 | q < 12345678901234567890.12345678911 | q = w | w > q | w = z | w = 3 | w > 9223372036854775807 | z = 0.5 | z < 0.00000000000000000000000000000000000001 | q <=> r | w <=> z
w in (3, q) | z > p | z in (0.5, w) | q in (1.5, 3, 2.00000000001) | p = d | q > d | nest.a = 3 | nest.b.x = 'a' | nest.b is null | nest is null | tags is null | nest.a is null and tags is not null
i <> 0 and 10 / i > 2 | i = 0 or 10 / i > 2 | b and 10 / i > 2 | upper(t) = 'A' and 10 / i > 2 | i <> 0 and 10 / i > 2 and t rlike 'a' | not (i = 0 or 10 / i <= 2)
case when i <> 0 then 10 / i > 2 end | case when upper(t) = 'A' then 10 / i > 2 else b end | coalesce(b, 10 / i > 2) | cast(t as int) > 3 | i > 3 and cast(t as int) = 12 | tags is null or cast(t as int) > 3
try_cast(t as int) > 3 | try_cast(t as date) = '2024-02-29' | try_cast(t as timestamp) < at | nullif(i, 3) is null | if(b, i, j) > 0 | i + j > 5 | n + 1 > 0 | i % 2 = 1 | 1 = 1 | year(at) = 2024
lower(t) in ('a', 'abc', 'straße') | length(t) > 3 | abs(i) > 5 | day(day) = 31 | hour(at) = 7 | hour(clock) = 2
"""  # noqa: E501
EXPRESSIONS = """
i | n | f | d | t | b | day | at | clock | time | id | fix | bin | p | q | nest.a | 1 | 1.50 | 'text' | null | true | X'00ff' | 1e10 | date '2024-01-01' | timestamp '2024-01-01 00:00:00'
i + 1 | i + j | n + 1 | n + i | i - j | n - 1 | n - j | i * j | n * j | n * n | i * i | i / j | n / j | i / 0 | i % j | n % j | n % -1 | n div j | n div -1 | i div j | -i | -n | abs(i) | abs(n) | -d | abs(d) | -p | abs(q) | -w | abs(w)
d + e | d - e | d * e | d / e | d % e | f + e | f * 2 | i + 1.5 | i * 1e0 | d + i | n / 3 | 10 / e | null / i | i + null | null % 0 | i / null
p + p | p + r | p - q | p * r | p * p | p / p | p / r | p % r | p % p | r * r | r / p | q + q | q * q | q / r | w + 1 | w * 2 | w - w | w / 3 | z + z | z * z | p + i | p * j | p / i | p % i | p + n | p / 3 | q % 7 | 1 - p | p * 1.05 | w % z | p + 1 | r % 0.1
cast(i as bigint) | cast(i as tinyint) | cast(n as int) | cast(n as smallint) | cast(d as int) | cast(d as bigint) | cast(d as tinyint) | cast(f as int) | cast(p as int) | cast(q as bigint) | cast(w as bigint) | cast(z as int) | cast(b as int)
cast(at as bigint) | cast(clock as bigint) | cast(at as int) | try_cast(n as int) | try_cast(d as int) | try_cast(w as bigint) | cast(t as int) | try_cast(t as int) | try_cast(t as bigint) | try_cast(t as smallint)
cast(i as double) | cast(n as double) | cast(n as float) | cast(d as float) | cast(p as double) | cast(r as double) | cast(q as double) | cast(q as float) | cast(z as double) | cast(w as double) | cast(w as float) | cast(b as double) | try_cast(t as double) | try_cast(t as float)
cast(i as decimal(5,2)) | try_cast(i as decimal(5,2)) | cast(n as decimal(19,0)) | try_cast(n as decimal(20,2)) | try_cast(d as decimal(10,3)) | cast(d as decimal(38,10)) | try_cast(f as decimal(20,10)) | cast(p as decimal(6,1)) | try_cast(p as decimal(6,1)) | cast(q as decimal(38,2)) | try_cast(t as decimal(10,2)) | cast(b as decimal(3,1)) | cast(z as decimal(10,10)) | try_cast(b as decimal(1,1)) | try_cast(w as decimal(38,1))
cast(i as boolean) | cast(d as boolean) | cast(p as boolean) | cast(b as boolean) | try_cast(t as boolean) | cast(t as boolean) | cast(i as string) | cast(n as string) | cast(b as string) | cast(p as string) | cast(r as string) | cast(z as string) | cast(day as string) | cast(at as string) | cast(clock as string) | cast(t as string) | cast(bin as string) | cast(t as binary) | cast(bin as binary)
cast(day as date) | cast(at as date) | cast(clock as date) | try_cast(t as date) | cast(t as date) | to_date(t) | cast(at as timestamp) | cast(clock as timestamp) | cast(at as timestamp_ntz) | cast(day as timestamp) | cast(i as timestamp) | cast(n as timestamp) | try_cast(n as timestamp) | try_cast(t as timestamp) | cast(t as timestamp) | date(at)
case when i > 3 then i when i < 0 then n else 0 end | case when b then p else i end | case i when 1 then 'one' when 3 then t end | if(b, at, clock) | if(b, day, at) | if(b, d, i) | if(b, p, 1e0) | case when b then null else id end | if(b, p, r) | coalesce(i, j, 0) | coalesce(at, clock, day) | coalesce(t, upper(s)) | coalesce(i, 1 / j) | nullif(i, j) | nullif(t, '') | nvl(p, i) | coalesce(id, id) | coalesce(time, time) | coalesce(p, d) | coalesce(at, null) | case when b then cast(t as int) else 10 / j end
year(day) | month(day) | day(day) | quarter(day) | dayofyear(day) | weekofyear(day) | dayofweek(day) | weekday(day) | hour(day) | year(at) | month(at) | day(at) | quarter(at) | dayofyear(at) | weekofyear(at) | dayofweek(at) | weekday(at) | hour(at) | minute(at) | second(at) | year(clock) | day(clock) | hour(clock) | minute(clock) | second(clock) | dayofweek(clock) | year(t) | year(try_cast(t as date))
upper(t) | lower(t) | upper(s) | length(t) | length(bin) | length(fix) | substring(t, 1, 2) | substring(t, 0, 2) | substring(t, 2) | substring(t, -2) | substring(t, -5, 3) | substring(t, -2, 5) | substring(t, 3, 0) | substring(t, 2, -1) | substring(t, 9000000000, 2) | substring(t, 2, 9000000000) | substring(t, -9000000000, 2) | left(t, 2) | left(t, 0)
trim(t) | ltrim(t) | rtrim(t) | trim(both 'a ' from t) | trim(leading 'a' from t) | trim(trailing 'cb' from t) | trim('😀' from t) | concat(t, s) | t || '!' | concat(t, i, day, at) | concat(t, null) | concat(i, p) | t || z | concat(t) | concat(upper(t), n)
i > 3 and b | t rlike 'a' or i = 1 | d > 1 | isnan(d) | b is null | i in (1, null) | d <=> e | at < clock
"""  # noqa: E501
SETTINGS = [
    {"ansi": "true", "zone": "UTC", "case": "false"},
    {"ansi": "false", "zone": "America/New_York", "case": "true"},
    {"ansi": "false", "zone": "Asia/Kolkata", "case": "false"},
    {"ansi": "true", "zone": "Europe/Berlin", "case": "true"},
]


def cases() -> Iterator[Filter | Expression]:
    for text in _split(CONDITIONS):
        yield parse_filter(text, SCHEMA)
    for text in _split(EXPRESSIONS):
        yield parse_expression(text, SCHEMA)
    for name in ("i", "n", "t", "day", "at", "clock", "id", "bin", "p", "time"):
        field = SCHEMA.find_field(name)
        column = Column(field.field_id, (field.field_id,), name, field.field_type, sql_type(field.field_type))
        bucketed = Call("bucketed", (column,), pa.bool_(), (7, frozenset({1, 3, 6})))
        yield Filter(f"bucket of {name}", SCHEMA, bucketed, built=True)


def _split(table: str) -> list[str]:
    return [each.strip() for line in table.strip().splitlines() for each in line.split(" | ")]


def rows() -> pa.Table:
    """Every value of a column beside every value of its neighbours, or nearly so: the lengths of the lists differ."""
    target = arrow_schema(SCHEMA)
    made: dict[str, Any] = {"row": pa.array(range(ROWS), pa.int32())}
    for step, (name, values) in enumerate(VALUES.items()):
        chosen = [values[(row * (1 + step % 3) + row // (3 + step)) % len(values)] for row in range(ROWS)]
        kind = target.field(name).type
        if name in ("at", "clock", "moment"):
            made[name] = pa.array(chosen, TIMESTAMP).view(pa.int64()).view(kind)
        elif name == "time":
            made[name] = pa.array(chosen, pa.int64()).cast(kind)
        elif name == "id":
            made[name] = pa.ExtensionArray.from_storage(kind, pa.array(chosen, pa.binary(16)))
        else:
            made[name] = pa.array(chosen, kind)
    nested = [None, {"a": 3, "b": {"x": "a"}}, {"a": None, "b": None}, {"a": 1, "b": {"x": None}}]
    made["nest"] = pa.array([nested[row % 4] for row in range(ROWS)], target.field("nest").type)
    made["tags"] = pa.array([[None, [], ["a", None]][row % 3] for row in range(ROWS)], target.field("tags").type)
    return pa.table(made, schema=pa.schema([target.field(name) for name in made]))


def as_spark_has_them(table: pa.Table) -> pa.Table:
    """uuid as text, time as a count."""
    for position, field in enumerate(table.schema):
        column: Any = table.column(position).combine_chunks()
        if field.name == "id":
            column = pa.array([None if each is None else str(each) for each in column.to_pylist()], pa.string())
        elif field.name == "time":
            column = column.view(pa.int64())
        elif field.name == "fix":
            column = column.cast(pa.binary())
        table = table.set_column(position, pa.field(field.name, column.type), column)
    return table


# PySpark leaves the sockets it collects through to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
ERROR = object()
_FAILURE = re.compile("in some row|out of bounds|(?i:overflow)")


def expected(case: Filter | Expression, table: pa.Table) -> list[Any]:
    """A value for each row, or ERROR."""
    try:
        found: Any = case.mask(table) if isinstance(case, Filter) else case.evaluate(table)
    except (InvalidInput, pa.ArrowInvalid, OverflowError):
        if table.num_rows == 1:
            return [ERROR]
        half = table.num_rows // 2
        return expected(case, table.slice(0, half)) + expected(case, table.slice(half))
    if isinstance(case, Expression) and found.type == pa.time64("us"):
        found = found.view(pa.int64())
    values: list[Any] = found.to_pylist()
    if isinstance(case, Expression) and found.type == pa.binary(16):
        values = [None if each is None else str(uuid.UUID(bytes=each)) for each in values]
    return values


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return rows()


@pytest.fixture(scope="module")
def answers(table: pa.Table) -> list[tuple[Filter | Expression, list[Any]]]:
    return [(case, expected(case, table)) for case in cases()]


@pytest.fixture(scope="module")
def frame(spark: Any, table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("columns") / "rows.parquet"
    pq.write_table(as_spark_has_them(table), path, row_group_size=80)
    return spark.read.schema(types.spark_schema(SCHEMA)).parquet(str(path))


def at(frame: Any) -> columns.At:
    def find(node: Column) -> Any:
        return frame[".".join(f"`{SCHEMA.find_field(each).name}`" for each in node.path)]

    return find


def translated(case: Filter | Expression, frame: Any) -> Any:
    return columns.condition(case, at(frame)) if isinstance(case, Filter) else columns.value(case, at(frame))


def hostile(spark: Any, setting: dict[str, str]) -> Any:
    return session.with_settings(
        spark,
        {
            "spark.sql.ansi.enabled": setting["ansi"],
            "spark.sql.session.timeZone": setting["zone"],
            "spark.sql.caseSensitive": setting["case"],
            "spark.sql.decimalOperations.allowPrecisionLoss": setting["ansi"],
            "spark.sql.timestampType": "TIMESTAMP_NTZ" if setting["zone"] == "Asia/Kolkata" else "TIMESTAMP_LTZ",
            "spark.sql.execution.arrow.useLargeVarTypes": setting["case"],
        },
    )


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: f"{each['ansi']}-{each['zone']}")
def test_spark_has_the_same_value_on_every_row(
    spark: Any, frame: Any, answers: list[tuple[Filter | Expression, list[Any]]], setting: dict[str, str]
) -> None:
    from pyspark.sql import functions as F

    wrong: list[str] = []
    with hostile(spark, setting):
        for start in range(0, len(answers), 50):
            some = answers[start : start + 50]
            selected = []
            for number, (case, values) in enumerate(some):
                column = translated(case, frame)
                if isinstance(case, Filter):
                    column = F.coalesce(column, F.lit(False))
                failing = [row for row, value in enumerate(values) if value is ERROR]
                if failing:
                    # Rows that are not asked for must not fail, wherever the part that fails is evaluated.
                    column = F.when(~F.col("row").isin(failing), column)
                selected.append(column.alias(f"c{number}"))
            found = frame.select("row", *selected).toArrow().sort_by("row")
            for number, (case, values) in enumerate(some):
                wrong += differences(case, values, found.column(f"c{number}").to_pylist())
    assert wrong == []


def differences(case: Filter | Expression, values: list[Any], found: list[Any]) -> list[str]:
    pairs = [
        (want, got) for want, got in zip(values, found, strict=True) if want is not ERROR and repr(want) != repr(got)
    ]
    return [f"{case.text}: {len(pairs)} rows, such as {pairs[0]}"] if pairs else []


def test_spark_fails_on_the_rows_that_ours_fails_on(
    spark: Any, table: pa.Table, answers: list[tuple[Filter | Expression, list[Any]]]
) -> None:
    from pyspark.errors import PySparkException

    fallible = [(case, values.index(ERROR)) for case, values in answers if ERROR in values]
    assert len(fallible) > 40
    given = as_spark_has_them(table)
    said = {}
    for number, (case, row) in enumerate(fallible):
        with hostile(spark, SETTINGS[number % 2]):
            frame = spark.createDataFrame(given.slice(row, 1), types.spark_schema(SCHEMA))
            one = frame.select(translated(case, frame).alias("c"))
            try:
                said[case.text] = f"no error, but {one.toArrow().to_pylist()}"
            except PySparkException as error:
                said[case.text] = str(error)
    assert {text: each for text, each in said.items() if not _FAILURE.search(each)} == {}


def test_a_filter_on_a_parquet_file_finds_the_rows(
    spark: Any, frame: Any, answers: list[tuple[Filter | Expression, list[Any]]]
) -> None:
    """Pushed down into row groups, where statistics know nothing of NaN and dictionaries tell 0.0 from -0.0."""
    from pyspark.sql import functions as F

    parts = []
    for case, values in answers:
        if isinstance(case, Filter) and ERROR not in values and not spark_workers.has_foreign(case.condition):
            parts.append((case, [row for row, value in enumerate(values) if value]))
    found: list[list[int]] = [[] for _ in parts]
    with hostile(spark, SETTINGS[1]):
        for start in range(0, len(parts), 40):
            some = [
                frame.filter(translated(case, frame)).select(F.lit(start + number).alias("case"), "row")
                for number, (case, _) in enumerate(parts[start : start + 40])
            ]
            for each in reduce(lambda one, other: one.unionAll(other), some).toArrow().to_pylist():
                found[each["case"]].append(each["row"])
    wrong = [
        (case.text, set(want) ^ set(got)) for (case, want), got in zip(parts, found, strict=True) if sorted(got) != want
    ]
    assert wrong == []
    assert len(parts) > 100


_BARE = """
import pickle, sys
for name in ("frazil", "pyiceberg", "pandas", "numpy", "sqlglot", "pyroaring"):
    sys.modules[name] = None
import pyarrow as pa
found = pickle.load(sys.stdin.buffer)([pa.array(["12", "x", None]), pa.array([1, 0, 0])])
print(found.to_pylist())
"""


def test_what_goes_to_executors_needs_pyarrow_and_pyspark_only() -> None:
    text = "coalesce(try_cast(t as int), length(upper(t))) in (12, 7) or (i <> 0 and 10 / i > 2 and t rlike 'x')"
    given = spark_workers.pickled(parse_filter(text, SCHEMA).condition)
    done = subprocess.run([sys.executable, "-c", _BARE], input=given, capture_output=True, check=False)
    assert (done.stdout.decode(), done.stderr.decode()) == ("[True, False, None]\n", "")


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("i > 3", "GreaterThan(i,3)"),
        ("i > 3.5", "GreaterThanOrEqual(i,4)"),
        ("n = 5", "EqualTo(n,5)"),
        ("day >= '2020-01-01'", "GreaterThanOrEqual(day,2020-01-01)"),
        ("t = 'a' and cast(t as int) = 3", "EqualTo(t,a)"),
        ("t like 'a%'", "StringStartsWith(t,a)"),
        ("at > '2020-01-01 00:00:00'", "GreaterThan(at,"),
        ("clock > '2020-01-01 00:00:00'", "GreaterThan(clock,2020-01-01T00:00)"),
        ("p = 1.5", "EqualTo(p,1.50)"),
        ("p in (1.5, 2)", "In(p, [1.50,2.00])"),
        ("d < 3", "LessThan(d,3.0)"),
        ("d = 0", "GreaterThanOrEqual(d,-0.0)"),
        ("not (d <= 3)", None),
        ("d <> 3", None),
    ],
)
def test_parquet_is_asked_what_it_can_answer(
    spark: Any, frame: Any, where: str, wanted: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with hostile(spark, SETTINGS[1]):
        frame.filter(columns.condition(parse_filter(where, SCHEMA), at(frame))).explain("formatted")
    plan = capsys.readouterr().out
    pushed = next((line for line in plan.splitlines() if line.startswith("PushedFilters")), None)
    # Without a filter to push down, the plan has no such line.
    assert pushed is None if wanted is None else pushed is not None and wanted in pushed


def test_thousands_of_conditions_are_one(frame: Any, table: pa.Table) -> None:
    where = parse_filter(" or ".join(f"i = {number}" for number in range(3000)), SCHEMA)
    found = frame.filter(columns.condition(where, at(frame))).select("row").toArrow().column("row").to_pylist()
    assert sorted(found) == table.filter(where.mask(table)).column("row").to_pylist()


def test_numbers_of_more_than_38_digits_have_no_type_in_spark(frame: Any) -> None:
    with pytest.raises(Unsupported, match="may have 76 digits"):
        columns.value(parse_expression("if(b, w, z)", SCHEMA), at(frame))
