"""PyIceberg's conversions of schemas for Arrow and Parquet.

PyIceberg's Arrow module loads pandas and pyarrow.dataset, which takes longer than all else that Frazil imports, so it
is loaded on first use.
"""

from __future__ import annotations

from typing import Any, overload

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType


@overload
def to_arrow_schema(schema: Schema, *, include_field_ids: bool = True) -> pa.Schema: ...
@overload
def to_arrow_schema(schema: IcebergType, *, include_field_ids: bool = True) -> Any: ...
def to_arrow_schema(schema: Schema | IcebergType, *, include_field_ids: bool = True) -> Any:
    """The Arrow schema of a schema, the Arrow type of a type, with Parquet field ids at all levels or none."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema, include_field_ids=include_field_ids)


def parquet_paths(schema: Schema) -> dict[str, int]:
    """The field ids of a schema by path in a Parquet file."""
    from pyiceberg.io.pyarrow import parquet_path_to_id_mapping

    return parquet_path_to_id_mapping(schema)
