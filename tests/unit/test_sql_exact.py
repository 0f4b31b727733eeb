"""Values on which Arrow and Python differ from Spark, unless one takes care."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from frazil.expr import parse_expression, parse_filter
from frazil.format.schemas import to_schema

WIDE = Decimal("12345678901234567890123456789012345678")
SCHEMA = to_schema("p decimal(10, 2), w decimal(38, 0), z decimal(38, 38), d double, n bigint")
ROWS = pa.table(
    {
        "p": pa.array([Decimal("476807.47")], pa.decimal128(10, 2)),
        "w": pa.array([WIDE], pa.decimal128(38, 0)),
        "z": pa.array([Decimal("0.3")], pa.decimal128(38, 38)),
        "d": pa.array([float("nan")]),
        "n": pa.array([2**62]),
    }
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("-w", -int(WIDE)),
        ("abs(w)", int(WIDE)),
        ("w % z", 0),
        ("if(n = 0, 1e0, p)", 476807.47),
        ("try_cast(d as decimal(10, 2))", None),
        ("try_cast(n as timestamp)", None),
    ],
)
def test_a_value_is_sparks(text: str, wanted: Any) -> None:
    assert parse_expression(text, SCHEMA).evaluate(ROWS).to_pylist() == [wanted]


def test_a_decimal_equals_the_double_nearest_to_it() -> None:
    assert parse_filter("p = 476807.47e0", SCHEMA).mask(ROWS).to_pylist() == [True]
