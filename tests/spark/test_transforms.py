"""Partition transforms on Spark against PyIceberg's own, under settings that try to change them."""

from __future__ import annotations

import datetime as dt
import math
import random
import uuid
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
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
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import SchemaMismatch
from frazil.on_spark import session as sessions
from frazil.on_spark.transforms import decode_partition, partition_column, with_partition
from frazil.on_spark.types import spark_schema
from spark.test_stage import settled

# PySpark leaves the sockets it moves rows through to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

HOSTILE = [
    {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "America/New_York"},
    {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.caseSensitive": "true",
    },
]
_rng = random.Random(7)


def _some_texts() -> list[str]:
    known = [
        "",
        "a",
        "ab",
        "abc",
        "abcd",
        "iceberg",
        "ß€𝄞",
        "𝄞𝄞𝄞𝄞𝄞",
        "Ünïcödé",
        "_",
        "-",
        "n",
        "__HIVE_DEFAULT_PARTITION__",
    ]
    return [
        *known,
        "x" * 1000,
        *("".join(chr(_rng.choice([65, 233, 8364, 0x1F600])) for _ in range(n)) for n in range(24)),
    ]


def _some_micros() -> list[int]:
    known = [
        0,
        1,
        -1,
        3_599_999_999,
        -3_600_000_001,
        86_400_000_000,
        -86_400_000_000,
        -86_400_000_001,
        1510871468000001,
    ]
    # Hours that clocks in New York skip or have twice, and times before the Gregorian calendar.
    known += [1583638200000000, 1583640000000000, 1604194200000000, 1604197800000000, -12_219_292_800_000_001]
    return [*known, *(_rng.randrange(-60_000_000_000_000_000, 250_000_000_000_000_000) for _ in range(200))]


_INTS = [
    0,
    1,
    -1,
    34,
    9,
    -9,
    10,
    -10,
    2**31 - 1,
    -(2**31) + 1000,
    *(_rng.randrange(-(2**31) + 1000, 2**31) for _ in range(100)),
]
_LONGS = [*_INTS, 2**63 - 1, -(2**63) + 1000, *(_rng.randrange(-(2**63) + 1000, 2**63) for _ in range(100))]
_BYTES = [b"", b"\x00", b"\x00\x01\x02\x03", b"\xff" * 7, *(_rng.randbytes(n) for n in range(40))]
_TIMES = ["year", "month", "day", "hour", "identity", "bucket[16]"]

CASES: list[tuple[PrimitiveType, list[Any], list[str]]] = [
    (BooleanType(), [True, False], ["identity"]),
    (IntegerType(), _INTS, ["identity", "bucket[16]", "bucket[1000003]", "truncate[10]", "truncate[7]", "void"]),
    (LongType(), _LONGS, ["identity", "bucket[16]", "truncate[10]", "truncate[1000]"]),
    (FloatType(), [0.0, -0.0, 1.5, math.nan, math.inf, 1.100000023841858, -3.4028234663852886e38], ["identity"]),
    (DoubleType(), [0.0, -0.0, 1.1, 5e-324, float("nan"), float("-inf"), 1.7976931348623157e308], ["identity"]),
    (StringType(), _some_texts(), ["identity", "bucket[16]", "bucket[1000003]", "truncate[3]", "truncate[1]", "void"]),
    (BinaryType(), _BYTES, ["identity", "bucket[16]", "truncate[3]"]),
    (FixedType(5), [_rng.randbytes(5) for _ in range(20)], ["identity", "bucket[100]"]),
    (UUIDType(), [uuid.UUID(int=_rng.getrandbits(128)) for _ in range(20)], ["identity", "bucket[100]"]),
    (DateType(), [0, 1, -1, -719162, 2932896, 17501, *(_rng.randrange(-700000, 2900000) for _ in range(100))],
     ["identity", "year", "month", "day", "bucket[16]"]),
    (TimeType(), [0, 1, 86_399_999_999, 81068000000], ["identity", "bucket[16]"]),
    (TimestampType(), _some_micros(), _TIMES),
    (TimestamptzType(), _some_micros(), _TIMES),
    (DecimalType(9, 2), [Decimal("0.00"), Decimal("14.20"), Decimal("-14.25"), Decimal("9999999.99")],
     ["identity", "bucket[16]", "truncate[50]"]),
    (DecimalType(38, 10), [Decimal("1E-10"), Decimal("-12345678901234567890123456.0123456789")],
     ["identity", "bucket[16]", "truncate[7]"]),
]  # fmt: skip


def _given(value: Any, kind: PrimitiveType) -> Any:
    """A value as Spark takes it."""
    match kind:
        case UUIDType():
            return str(value)
        case DateType():
            return dt.date(1970, 1, 1) + dt.timedelta(days=value)
    return value


def _frame(spark: Any, values: list[Any], kind: PrimitiveType, schema: Schema) -> Any:
    from pyspark.sql import functions as F

    rows = [(number, None if value is None else _given(value, kind)) for number, value in enumerate(values)]
    if isinstance(kind, TimestampType | TimestamptzType):
        # By number: Python's datetimes would go through the machine's zone.
        made = spark.createDataFrame(rows, "n long, x long")
        zoned = F.timestamp_micros(F.col("x"))
        if isinstance(kind, TimestamptzType):
            return made.select("n", zoned.alias("x"))
        zero = F.lit(None).cast("timestamp_ntz")
        days = F.expr("x - pmod(x, 86400000000L)") / 86_400_000_000
        day = F.date_from_unix_date(days.cast("int")).cast("timestamp_ntz")
        rest = F.expr("make_dt_interval(0, 0, 0, cast(pmod(x, 86400000000L) as decimal(18,0)) / 1000000)")
        return made.select("n", F.when(F.col("x").isNull(), zero).otherwise(day + rest).alias("x"))
    return spark.createDataFrame(rows, spark_schema(schema))


def _expected(value: Any, text: str, kind: PrimitiveType) -> Any:
    if text == "void" or value is None:
        return None
    if text.startswith("truncate") and isinstance(kind, BinaryType):
        return value[: int(text[9:-1])]
    return parse_transform(text).transform(kind)(value)


@pytest.mark.parametrize("settings", HOSTILE, ids=["ansi", "foreign"])
@pytest.mark.parametrize(("kind", "values", "transforms"), CASES, ids=[str(case[0]) for case in CASES])
def test_trap_7_transforms_agree_with_pyiceberg(
    spark: Any, settings: dict[str, str], kind: PrimitiveType, values: list[Any], transforms: list[str]
) -> None:
    from pyspark.sql import functions as F

    values = [*values, None]
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "x", kind))
    specs = {text: PartitionSpec(PartitionField(2, 1000, parse_transform(text), "p")) for text in transforms}
    with sessions.with_settings(spark, settings):
        frame = _frame(spark, values, kind, schema)
        columns = [partition_column(spec, schema, lambda _: F.col("x")).alias(text) for text, spec in specs.items()]
        found = frame.select("n", *columns).orderBy("n").collect()
    for text, spec in specs.items():
        wanted = [(_expected(value, text, kind),) for value in values]
        texts = [row[text] for row in found]
        decoded = [decode_partition(each, spec, schema) for each in texts]
        short = [(given, want) for given, want in zip(decoded, wanted, strict=True) if given is not None]
        assert [repr(given) for given, _ in short] == [repr(want) for _, want in short], text
        assert all(
            each and len(each) <= 200 and set(each) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for each in texts
        )
        # Different texts exactly for different partitions.
        assert len(set(texts)) == len({repr(want) for want in wanted})


def test_p32_the_text_of_a_partition_is_injective(spark: Any) -> None:
    from pyspark.sql import functions as F

    texts = ["", None, "n", "_", "a_b", "a", "b", "A", "x", "é", "x" * 300, "x" * 299 + "y"]
    schema = Schema(NestedField(1, "a", StringType()), NestedField(2, "b", StringType()))
    spec = PartitionSpec(
        PartitionField(1, 1000, parse_transform("identity"), "a"),
        PartitionField(2, 1001, parse_transform("identity"), "b"),
    )
    pairs = [(a, b) for a in texts for b in texts]
    frame = spark.createDataFrame(pairs, "a string, b string")
    hidden = partition_column(spec, schema, lambda field_id: F.col("ab"[field_id - 1])).alias("p")
    rows = frame.select("a", "b", hidden).collect()
    by_text = {row["p"]: (row["a"], row["b"]) for row in rows}
    assert len(by_text) == len(pairs)
    for text, pair in by_text.items():
        assert decode_partition(text, spec, schema) in (pair, None)


@pytest.mark.everywhere
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_buckets_of_texts_and_bytes_are_those_of_iceberg_also_as_columns(spark: Any, ansi: str) -> None:
    from pyspark.sql import functions as F

    dice = random.Random(5)
    texts = ["".join(dice.choice("aé€𝄞 z") for _ in range(length)) for length in range(40)]
    pairs: list[Any] = [(text, dice.randbytes(length % 23)) for length, text in enumerate(texts)]
    pairs += [(None, b""), ("", None), (None, None)]
    schema = Schema(NestedField(1, "a", StringType()), NestedField(2, "__frazil_hash1", BinaryType()))
    bucket: Any = parse_transform("bucket[1000]")
    spec = PartitionSpec(PartitionField(1, 1000, bucket, "x"), PartitionField(2, 1001, bucket, "y"))
    frame = spark.createDataFrame(pairs, "a string, __frazil_hash1 binary").coalesce(1)
    with settled(spark, {"spark.sql.ansi.enabled": ansi}):
        made = with_partition(frame, "p", spec, schema, lambda field_id: F.col(frame.columns[field_id - 1]))
        assert made.columns == ["a", "__frazil_hash1", "p"]
        rows = made.collect()
    of_text, of_bytes = bucket.transform(StringType()), bucket.transform(BinaryType())
    assert len(rows) == len(pairs)
    for row in rows:
        data = row["__frazil_hash1"]
        expected = (of_text(row["a"]), None if data is None else of_bytes(bytes(data)))
        assert decode_partition(row["p"], spec, schema) == expected


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (IntegerType(), -(2**31), "truncate[10]"),
        (LongType(), -(2**63), "truncate[10]"),
        (TimestamptzType(), 2**63 - 1, "hour"),
        (DecimalType(4, 0), Decimal(-9999), "truncate[10]"),
    ],
    ids=str,
)
def test_values_without_room_in_a_partition_are_refused(spark: Any, kind: PrimitiveType, value: Any, text: str) -> None:
    from pyspark.sql import functions as F

    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "x", kind))
    spec = PartitionSpec(PartitionField(2, 1000, parse_transform(text), "p"))
    frame = _frame(spark, [value], kind, schema)
    encoded = frame.select(partition_column(spec, schema, lambda _: F.col("x")).alias("p")).collect()[0]["p"]
    with pytest.raises(SchemaMismatch, match="too large or too small for a partition value"):
        decode_partition(encoded, spec, schema)
