"""Folders for files that executors write, and how functions and rows are sent to executors."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from frazil.dml import curves
from frazil.dml.view import View
from frazil.format.storage import Storage, canonical, is_local, local_path
from frazil.on_spark import executor, executor_changes, executor_footers, executor_reorder

_SPARKS_SEED = 42


def by_value(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of an executor module, pickled by value, as executors need not have Frazil installed."""
    from pyspark import cloudpickle

    for module in (executor, executor_changes, executor_footers, executor_reorder, curves):
        cloudpickle.register_pickle_by_value(module)
    return function


def s3_options(storage: Storage, path: str) -> dict[str, Any]:
    """The arguments of pyarrow's S3 file system for a table's files, from PyIceberg's FileIO properties."""
    properties = storage.properties_for(path)
    names = {
        "s3.endpoint": "endpoint_override",
        "s3.access-key-id": "access_key",
        "s3.secret-access-key": "secret_key",
        "s3.session-token": "session_token",
        "s3.region": "region",
        "client.access-key-id": "access_key",
        "client.secret-access-key": "secret_key",
        "client.session-token": "session_token",
        "client.region": "region",
    }
    found: dict[str, Any] = {}
    for name, ours in names.items():
        if name in properties:
            found.setdefault(ours, properties[name])
    if properties.get("s3.force-virtual-addressing", "").lower() == "true":
        found["force_virtual_addressing"] = True
    if "endpoint_override" in found:
        found.setdefault("region", "us-east-1")
    return found


class Folder:
    """A fresh folder for the files of one write. Only accepted files remain in it."""

    def __init__(self, path: str, storage: Storage) -> None:
        self.path = path
        self._storage = storage

    def accept(self, paths: Sequence[str]) -> None:
        """Keep these files and make them durable. Delete the rest, which failed and repeated tasks left."""
        known = {_plain(path) for path in paths}
        self._storage.delete([each.path for each in self._storage.list(self.path) if _plain(each.path) not in known])
        self._storage.sync(paths)

    def remove(self) -> None:
        with contextlib.suppress(Exception):
            self._storage.delete([each.path for each in self._storage.list(self.path)])


def _plain(path: str) -> str:
    return local_path(path) if is_local(path) else path


@contextlib.contextmanager
def new_folder(view: View) -> Iterator[Folder]:
    """A folder under the table's data location; an error in the block empties it again."""
    properties = view.metadata.properties
    base = properties.get("write.data.path") or f"{view.metadata.location.rstrip('/')}/data"
    folder = Folder(f"{canonical(base)}/{view.runtime.new_hex()}", view.storage)
    try:
        yield folder
    except BaseException:
        folder.remove()
        raise


# Assigning rows to tasks


@lru_cache(maxsize=32)
def keys_for(width: int) -> tuple[int, ...]:
    """For each of ``width`` partitions an integer that Spark's hash partitioning assigns to it."""
    found: dict[int, int] = {}
    for key in itertools.count():
        hashed = executor.murmur3(key.to_bytes(4, "little"), _SPARKS_SEED)
        # Spark's hash is signed. Python's remainder is never negative, and neither is Spark's pmod.
        found.setdefault((hashed - (hashed >> 31 << 32)) % width, key)
        if len(found) == width:
            return tuple(found[each] for each in range(width))
    raise AssertionError("unreachable")
