"""A data file as PyIceberg wants it told, for commits of files that are there already."""

from __future__ import annotations

from typing import Any

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

_UNKNOWN: dict[str, Any] = {
    "column_sizes": {},
    "value_counts": {},
    "null_value_counts": {},
    "nan_value_counts": {},
    "lower_bounds": {},
    "upper_bounds": {},
}


def their_file(path: str, rows: int = 10, **statistics: Any) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=1000,
        spec_id=0,
        **{**_UNKNOWN, **statistics},
    )
