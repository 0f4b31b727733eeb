"""Filters and expressions as Spark columns: those of frazil.expr, with this package's partition transforms."""

from __future__ import annotations

from frazil.expr import At, SparkColumn, SparkColumns
from frazil.on_spark.transforms import transformed

_columns = SparkColumns(transformed)
condition = _columns.condition
value = _columns.value
literal = _columns.literal
without_zone = _columns.without_zone

__all__ = ["At", "SparkColumn", "condition", "literal", "value", "without_zone"]
