"""Two interleavings with a known end, step by step in one thread, and the history that the checker gets of each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import frazil
from frazil.verify.checker import Outcome, Read, Transaction, Version, Write
from frazil.verify.checker.history import History
from peers.contend import CATALOG
from peers.registers import SCHEMA, TABLE, Place, PyIceberg, system_of
from peers.workload import Attempt, Note, changes, grouped, history_of, read_whole

KEY = 1


def two_upserts(place: Place) -> tuple[list[Note], History]:
    """Two clients read a key that is not there; then both put a value there; then a third reads everything."""
    clients = [system_of(place) for _ in range(3)]
    clients[0].create()
    for client in clients:
        client.open()
    try:
        one = Attempt(clients[0], 1, 1, KEY, 10)
        other = Attempt(clients[1], 2, 1, KEY, 20)
        one.read()
        other.read()
        notes = [one.commit(), other.commit(), read_whole(clients[2], 3, 1)]
        return notes, history_of(clients[2], notes)[0]
    finally:
        for client in clients:
            client.close()


def compaction_over_delete(place: Place) -> tuple[list[Note], History]:
    """Files are put together; before that is committed a row of them is deleted, and then another one elsewhere.

    The deletes are position deletes, as Spark's, and Frazil's here: PyIceberg writes none. ``place.system`` compacts.
    """
    lake = frazil.connect(place.uri, warehouse=f"file://{place.warehouse}", name=CATALOG)
    peer = PyIceberg(place)
    with lake:
        lake.create_namespace("bench")
        properties = {"write.delete.mode": "merge-on-read", "write.metadata.previous-versions-max": "1000000"}
        table = lake.create_table(TABLE, SCHEMA, properties=properties)
        peer.open()
        try:
            for first in (1, 3, 5):
                table.append(pa.Table.from_pylist([_row(first), _row(first + 1)], schema=SCHEMA))
            compact = _by_frazil(lake) if place.system == "frazil" else _by_pyiceberg(peer)
            table.delete("id = 1")
            table.delete("id = 6")
            compact()
            note = read_whole(peer, 3, 1)
            return [note], _told(peer, note)
        finally:
            peer.close()


def _row(key: int) -> dict[str, Any]:
    return {"id": key, "v": 10 * key, "prev": None}


def _by_frazil(lake: frazil.Lake) -> Callable[[], object]:
    transaction = lake.transaction()
    transaction.table(TABLE).compact(where="id < 5")
    return transaction.commit


def _by_pyiceberg(peer: PyIceberg) -> Callable[[], object]:
    """PyIceberg has no verb for it; these are its own means."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    table = peer.load()
    files = [task.file for task in table.scan("id < 5").plan_files()]
    merged = list(_dataframe_to_data_files(table.metadata, table.scan("id < 5").to_arrow(), table.io))
    transaction = table.transaction()
    with transaction.update_snapshot().overwrite() as rewrite:
        for file in files:
            rewrite.delete_data_file(file)
        for file in merged:
            rewrite.append_data_file(file)
    commit: Callable[[], object] = transaction.commit_transaction
    return commit


def _told(peer: PyIceberg, note: Note) -> History:
    """Each commit is one version, in this order; the compaction says that it changes nothing."""
    told: dict[str, tuple[Write, ...]] = {
        **{f"append {key}": (_add(key), _add(key + 1)) for key in (1, 3, 5)},
        "delete 1": (Write(TABLE, "remove", 1),),
        "delete 6": (Write(TABLE, "remove", 6),),
        "compaction": (),
    }
    transactions = [
        Transaction(name, "1", ops, Outcome.OK, commit_id=name, began=float(at), ended=at + 0.5)
        for at, (name, ops) in enumerate(told.items())
    ]
    seen: dict[Any, Any] = dict(grouped(note.rows, {}))
    at = float(len(told))
    transactions.append(Transaction("read", "2", (Read(TABLE, seen=seen, whole=True),), began=at, ended=at + 0.5))
    versions: list[Version] = []
    state: dict[int, tuple[int, ...]] = {}
    for name, (version, rows) in zip(told, peer.versions(), strict=True):
        now = grouped([(key, value) for key, value, _ in rows], {})
        parent = versions[-1].id if versions else None
        versions.append(Version(TABLE, version, (name,), parent, changes(state, now)))
        state = now
    return History(tuple(transactions), tuple(versions))


def _add(key: int) -> Write:
    return Write(TABLE, "add", key, 10 * key)


def sqlite_place(system: str, folder: Path) -> Place:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "warehouse").mkdir(parents=True)
    return Place(system, f"sqlite:///{folder}/catalog.db", str(folder))
