"""A scan that reports the values it reads from the named columns, and is otherwise unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from frazil.read.scan import Scan
from frazil.verify.recording.columns import Named, asked_keys

Tell = Callable[[dict[str, Any]], None]


class RecordedScan(Scan):
    """Passes rows on to the reader. An interrupted read reports nothing."""

    _named: Named
    _scope: dict[str, Any]
    _tell: Tell

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows a batch at a time; memory stays bounded. Closing the iterator stops reading."""
        found = _Seen(self._named)
        for batch in super().to_batches():
            found.add(self._named.pairs(batch))
            yield batch
        self._tell({**self._scope, "seen": found.listed()})

    def to_spark(self, spark: Any = None) -> Any:
        """The rows as a DataFrame of a Spark session: the one given, else the lake's, else the one that is active.

        The named columns are read again now, in a job of their own. The snapshot is pinned, so that every use of the
        frame sees the same rows.
        """
        frame = super().to_spark(spark)
        found = _Seen(self._named)
        found.add(self._named.pairs(frame.select(*self._named.columns).toArrow()))
        self._tell({**self._scope, "seen": found.listed()})
        return frame


def recorded_scan(scan: Scan, named: Named, tell: Tell) -> Scan:
    """A recording scan; the scan itself where its rows may be incomplete: other columns, conditions, or a limit."""
    wanted = scan._wanted
    ids = named.ids(wanted)
    where = scan._filter
    if ids is None or scan._limit is not None or not where.field_ids <= set(ids[:-1]):
        return scan
    asked = asked_keys(where, ids[0]) if len(ids) == 2 else None
    scope: dict[str, Any] = {"whole": True} if where.is_true else {} if asked is None else {"keys": asked}
    found = RecordedScan.__new__(RecordedScan)
    found.__dict__.update(scan.__dict__, _named=named, _scope=scope, _tell=tell)
    return found


class _Seen:
    """Values by key, with repetitions."""

    def __init__(self, named: Named) -> None:
        self._many = len(named.keys) > 1
        self._found: dict[Any, list[Any]] = {}

    def add(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        for key, value in pairs:
            self._found.setdefault(tuple(key) if self._many else key, []).append(value)

    def listed(self) -> list[list[Any]]:
        return [[list(key) if self._many else key, values] for key, values in self._found.items()]
