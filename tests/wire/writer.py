"""A writer process that does what its standard input says, by the public surface alone: any version can run it.

    python writer.py URI WAREHOUSE TABLE

A line in is ``{"verb": "append" | "upsert" | "delete" | "rows", "ids": [first, end], "value": text}``; a line out is
the commit, the rows, or the error.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa

import frazil


def rows(first: int, end: int, value: str) -> pa.Table:
    ids = pa.array(range(first, end), pa.int64())
    fields: list[pa.Field[Any]] = [pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string())]
    schema = pa.schema(fields)
    return pa.table([ids, pa.array([value] * len(ids), pa.string())], schema=schema)


def done(table: Any, order: dict[str, Any]) -> dict[str, Any]:
    if order["verb"] == "rows":
        found = table.scan().to_arrow()
        return {"rows": sorted(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))}
    first, end = order["ids"]
    if order["verb"] == "delete":
        commit = table.delete(f"id >= {first} and id < {end}")
    else:
        commit = getattr(table, order["verb"])(rows(first, end, order["value"]))
    return {"group_size": commit.group_size, "group_index": commit.group_index, "attempts": commit.attempts}


def main() -> None:
    uri, warehouse, name = sys.argv[1:]
    with frazil.connect(uri, warehouse=warehouse) as lake:
        table = lake.table(name)
        print(json.dumps({"version": frazil.__file__}), flush=True)
        for line in sys.stdin:
            try:
                answer = done(table, json.loads(line))
            except frazil.FrazilError as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
