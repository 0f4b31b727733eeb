"""The SQL expression language: one condition or value over one row of one table, with Spark SQL's meaning.

    text ─▶ parse ─▶ bind ─▶ nodes ─▶ evaluate (Arrow)
                               ├────▶ prune (statistics)
                               └────▶ Spark columns, and Python workers where Spark's functions differ

Other packages import from here and from no module below. sqlglot is loaded when the first text is parsed, and pyspark
when the first Spark column is made.
"""

from frazil.expr.assign import assigned, check_nulls
from frazil.expr.conditions import between_keys, in_partitions, near_keys
from frazil.expr.evaluate import internal, normalize
from frazil.expr.facts import Evaluator, Facts, Lookup, Share, may_match, must_match
from frazil.expr.file_facts import FileFacts
from frazil.expr.filters import Expression, Filter, Lit, find_array, lit, parse_expression, parse_filter
from frazil.expr.joins import compared, held, identical, joinable
from frazil.expr.names import did_you_mean
from frazil.expr.nodes import (
    BOOL,
    DATE,
    DOUBLE,
    INT,
    TEXT,
    TIMESTAMP,
    Call,
    Column,
    DataType,
    Literal,
    Node,
    is_decimal,
    sql_type,
)
from frazil.expr.params import like, params_of, with_params
from frazil.expr.pushdown import pushed
from frazil.expr.spark import At, SparkColumn, SparkColumns

__all__ = [
    "BOOL",
    "DATE",
    "DOUBLE",
    "INT",
    "TEXT",
    "TIMESTAMP",
    "At",
    "Call",
    "Column",
    "DataType",
    "Evaluator",
    "Expression",
    "Facts",
    "FileFacts",
    "Filter",
    "Lit",
    "Literal",
    "Lookup",
    "Node",
    "Share",
    "SparkColumn",
    "SparkColumns",
    "assigned",
    "between_keys",
    "check_nulls",
    "compared",
    "did_you_mean",
    "find_array",
    "held",
    "identical",
    "in_partitions",
    "internal",
    "is_decimal",
    "joinable",
    "like",
    "lit",
    "may_match",
    "must_match",
    "near_keys",
    "normalize",
    "params_of",
    "parse_expression",
    "parse_filter",
    "pushed",
    "sql_type",
    "with_params",
]
