"""Reads the footers of data files on executors: the columns that the files really have.

Pickled by value, so that executors need only pyarrow: import nothing else here but the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

FOOTERS = "path string, columns binary, int96 boolean, error string"


def read_footers(s3: dict[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """For each path its columns as a serialised Arrow schema, or what went wrong."""
    systems: dict[str, Any] = {}
    for batch in batches:
        paths = batch.column(0).to_pylist()
        found = [_footer(path, systems, s3) for path in paths]
        arrays: list[Any] = [
            pa.array(paths, pa.string()),
            pa.array([each[0] for each in found], pa.binary()),
            pa.array([each[1] for each in found], pa.bool_()),
            pa.array([each[2] for each in found], pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=["path", "columns", "int96", "error"])


def _footer(path: str, systems: dict[str, Any], s3: dict[str, Any]) -> tuple[bytes | None, bool | None, str | None]:
    try:
        with _open(path, systems, s3) as source, pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as parquet:
            return (*described(parquet), None)
    except (OSError, pa.ArrowException) as error:
        return None, None, f"{type(error).__name__}: {error}"


def described(parquet: Any) -> tuple[bytes, bool]:
    """A file's columns, without what else its schema carries, and whether it has timestamps of the old kind."""
    columns = parquet.schema_arrow.remove_metadata().serialize().to_pybytes()
    leaves = (parquet.schema.column(i) for i in range(len(parquet.schema)))
    return columns, any(leaf.physical_type == "INT96" for leaf in leaves)


def _open(path: str, systems: dict[str, Any], s3: dict[str, Any]) -> Any:
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return pa.OSFile(rest if separator else path.removeprefix("file:"), "rb")
    if scheme not in systems:
        known = scheme in ("s3", "s3a", "s3n")
        systems[scheme] = pafs.S3FileSystem(**s3) if known else pafs.FileSystem.from_uri(path)[0]
    return systems[scheme].open_input_file(rest)
