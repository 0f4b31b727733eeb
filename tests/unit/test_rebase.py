"""Rows followed through what others did to them: mine × theirs → where my rows are now, or a conflict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pyroaring import BitMap64

from frazil.commit.checks import Check
from frazil.commit.conflicts import REQUIRED, head_conflicts
from frazil.commit.history import History
from frazil.commit.intents import PropertyChange
from frazil.commit.operations import Base, Kind, MetadataChange, Read, Write
from frazil.expr import parse_filter
from frazil.model import Change, Content, DataFile, Entry, Isolation, Lineage, Run, Status
from unit.rebasing import Followed, checked, followed
from unit.samples import FIELDS, appending, metadata, snapshot

HEAD = metadata()
SERIALIZABLE, SNAPSHOT = Isolation.SERIALIZABLE, Isolation.SNAPSHOT


def file(path: str, rows: int = 10) -> DataFile:
    return DataFile(path, record_count=rows, file_size_in_bytes=100)


def rows(*numbers: int) -> BitMap64:
    return BitMap64(numbers)


F, G, H, OUT, NEW = file("f"), file("g"), file("h"), file("out"), file("new", 2)


@dataclass
class Fake:
    """A Look that knows everything beforehand."""

    deletes: Mapping[str, Mapping[str, BitMap64]] = field(default_factory=dict)
    lineages: Mapping[str, Lineage] = field(default_factory=dict)
    keys: Mapping[str, Mapping[str, BitMap64]] = field(default_factory=dict)
    asked: Mapping[str, BitMap64] = field(default_factory=dict)
    matching: frozenset[str] = frozenset()
    seen: Mapping[str, tuple[DataFile, BitMap64]] = field(default_factory=dict)
    live: Mapping[str, BitMap64] = field(default_factory=dict)
    on_rows: Callable[[str], object] = lambda _path: None
    on_lineage: Callable[[str], object] = lambda _path: None

    def positions(self, deletes: DataFile) -> Mapping[str, BitMap64]:
        return self.deletes[deletes.file_path]

    def lineage(self, path: str) -> Lineage | None:
        self.on_lineage(path)
        return self.lineages.get(path)

    def applies(self, deletes: Entry, file: DataFile) -> bool:
        return file.file_path in self.keys[deletes.file.file_path]

    def hit_by_keys(self, deletes: Entry, file: DataFile, rows: BitMap64) -> BitMap64:
        return rows & self.keys[deletes.file.file_path][file.file_path]

    def asked_to_go(self, change: Change, file: DataFile) -> BitMap64:  # noqa: ARG002
        return self.asked.get(file.file_path, BitMap64())

    def matches(self, added: Entry, read: Read) -> bool:  # noqa: ARG002
        return added.file.file_path in self.matching

    def live_rows(self, path: str) -> BitMap64 | None:
        return self.live.get(path)

    def seen_files(self) -> Mapping[str, DataFile]:
        return {path: file for path, (file, _) in self.seen.items()}

    def seen_rows(self, path: str) -> tuple[DataFile, BitMap64] | None:
        self.on_rows(path)
        return self.seen.get(path)


# What I do


def mine(kind: Kind, **changes: Any) -> Write:
    return Write(kind, HEAD.uuid, base=Base(1, 1), written_ids={1: "id", 2: "name"}, **changes)


def position_delete(path: str, of: str) -> DataFile:
    return DataFile(path, 1, 10, content=Content.POSITION_DELETES, referenced_data_file=of)


MY_MARK = position_delete("my-mark", "f")


def marking(kind: Kind, *numbers: int) -> Write:
    """Merge-on-read: rows of f are deleted, and an update writes them to another file."""
    moved = {"f": rows(*numbers)} if kind is Kind.UPDATE else {}
    added = (NEW,) if kind is Kind.UPDATE else ()
    return mine(kind, deletes=(MY_MARK,), positions={"f": rows(*numbers)}, touched={"f": F}, moved=moved, added=added)


def copying(kind: Kind, *numbers: int) -> Write:
    """Copy-on-write: f goes, and its rows but these are in "out"."""
    runs: list[Run] = []
    for row in range(10):
        if row in numbers:
            continue
        if runs and runs[-1].first + runs[-1].length == row:
            runs[-1] = Run("f", runs[-1].first, runs[-1].length + 1)
        else:
            runs.append(Run("f", row, 1))
    out = file("out", 10 - len(numbers))
    moved = {"f": rows(*numbers)} if kind is Kind.UPDATE else {}
    added = (out, NEW) if kind is Kind.UPDATE else (out,)
    return mine(kind, removed=(F,), copies={"out": tuple(runs)}, added=added, moved=moved)


def removing(kind: Kind) -> Write:
    return mine(kind, removed=(F,), added=(NEW,) if kind is not Kind.DELETE else ())


# What they did


def theirs(operation: str, **changes: Any) -> Change:
    return Change(2, 2, operation, **{"is_delete": operation == "delete", **changes})


def added(*files: DataFile) -> tuple[Entry, ...]:
    return tuple(Entry(Status.ADDED, each, 2, 2, 2) for each in files)


THEIR_MARK = Entry(Status.ADDED, position_delete("their-mark", "f"), 2, 2, 2)
THEIR_KEYS = Entry(Status.ADDED, DataFile("their-keys", 1, 10, content=Content.EQUALITY_DELETES), 2, 2, 2)
DELETED_SOME = theirs("delete", deletes=(THEIR_MARK,))
UPDATED_SOME = theirs("overwrite", deletes=(THEIR_MARK,), added=added(H))
UPSERTED = theirs("overwrite", deletes=(THEIR_KEYS,), added=added(H))
REMOVED = theirs("delete", removed=(F,))
COMPACTED = theirs("replace", removed=(F,), added=added(file("g", 20)), lineage_path="lineage")
COMPACTED_UNTRACED = theirs("replace", removed=(F,), added=added(G))
COPIED = theirs("overwrite", removed=(F,), added=added(file("g", 9), H), lineage_path="copied")
COPIED_DELETE = theirs("overwrite", removed=(F,), added=added(file("g", 9)), lineage_path="left-out", is_delete=True)
OVERWRITTEN = theirs("overwrite", removed=(F,), added=added(H), lineage_path="nothing")
NINE = (Run("f", 0, 4), Run("f", 5, 5))
OTHER_NINE = (Run("g", 0, 4), Run("g", 5, 5))
LOOK: dict[str, Any] = {
    "deletes": {"their-mark": {"f": rows(4)}},
    "lineages": {
        "lineage": Lineage({"g": (Run("other", 0, 10), Run("f", 0, 10))}),
        "copied": Lineage({"g": NINE}, {"f": rows(4)}),
        "left-out": Lineage({"g": NINE}),
        "nothing": Lineage(),
    },
    "keys": {"their-keys": {"f": rows(4)}},
}

D, U, R = Kind.DELETE, Kind.UPDATE, Kind.REWRITE
BOTH: Check | None = None

ROWS: list[tuple[str, Write, Change, Check | None]] = [
    ("delete, theirs deleted another row of the file", marking(D, 1), DELETED_SOME, BOTH),
    ("delete, theirs deleted the same row", marking(D, 4), DELETED_SOME, BOTH),
    ("delete, theirs updated another row of the file", marking(D, 1), UPDATED_SOME, BOTH),
    ("delete, theirs updated the same row", marking(D, 4), UPDATED_SOME, Check.ROW_OWNER),
    ("update, theirs deleted another row of the file", marking(U, 1), DELETED_SOME, BOTH),
    ("update, theirs deleted the same row", marking(U, 4), DELETED_SOME, Check.ROW_OWNER),
    ("update, theirs updated another row", marking(U, 1), UPDATED_SOME, BOTH),
    ("update, theirs updated the same row", marking(U, 4), UPDATED_SOME, Check.ROW_OWNER),
    ("update, theirs upserted another key", marking(U, 1), UPSERTED, BOTH),
    ("update, theirs upserted the same key", marking(U, 4), UPSERTED, Check.NO_NEW_DELETES),
    ("delete, theirs upserted the same key", marking(D, 4), UPSERTED, BOTH),
    ("delete, theirs removed the file", marking(D, 4), REMOVED, BOTH),
    ("update, theirs removed the file", marking(U, 4), REMOVED, Check.ROW_OWNER),
    ("delete, theirs compacted", marking(D, 4), COMPACTED, BOTH),
    ("update, theirs compacted", marking(U, 4), COMPACTED, BOTH),
    ("delete, theirs compacted without a record", marking(D, 4), COMPACTED_UNTRACED, Check.FILES_EXIST),
    ("delete, theirs copied the file and changed another row", marking(D, 1), COPIED, BOTH),
    ("delete, theirs copied the file and changed the same row", marking(D, 4), COPIED, Check.ROW_OWNER),
    ("delete, theirs copied the file without the same row", marking(D, 4), COPIED_DELETE, BOTH),
    ("update, theirs copied the file without the same row", marking(U, 4), COPIED_DELETE, Check.ROW_OWNER),
    ("update, theirs copied the file without another row", marking(U, 1), COPIED_DELETE, BOTH),
    ("copying delete, theirs deleted another row", copying(D, 1), DELETED_SOME, BOTH),
    ("copying delete, theirs updated the same row", copying(D, 4), UPDATED_SOME, Check.ROW_OWNER),
    ("copying update, theirs upserted another key", copying(U, 1), UPSERTED, BOTH),
    ("copying update, theirs upserted the same key", copying(U, 4), UPSERTED, Check.NO_NEW_DELETES),
    ("copying update, theirs copied with another row", copying(U, 1), COPIED, BOTH),
    ("copying update, theirs copied with the same row", copying(U, 4), COPIED, Check.ROW_OWNER),
    ("copying update, theirs compacted", copying(U, 1), COMPACTED, BOTH),
    ("delete of the file, theirs compacted", removing(D), COMPACTED, BOTH),
    ("delete of the file, theirs overwrote it", removing(D), OVERWRITTEN, BOTH),
    ("delete of the file, theirs removed it", removing(D), REMOVED, BOTH),
    ("overwrite of the file, theirs removed it", removing(Kind.OVERWRITE), REMOVED, BOTH),
    ("overwrite of the file, theirs deleted a row", removing(Kind.OVERWRITE), DELETED_SOME, BOTH),
    ("overwrite of the file, theirs overwrote it", removing(Kind.OVERWRITE), OVERWRITTEN, BOTH),
    ("overwrite of the file, theirs compacted", removing(Kind.OVERWRITE), COMPACTED, BOTH),
    ("rewrite, theirs deleted a row", copying(R), DELETED_SOME, BOTH),
    ("rewrite, theirs upserted", copying(R), UPSERTED, BOTH),
    ("rewrite, theirs removed the file", copying(R), REMOVED, BOTH),
    ("rewrite, theirs copied the file", copying(R), COPIED, BOTH),
    ("rewrite, theirs rewrote the file", copying(R), COMPACTED, Check.FILES_NOT_REMOVED),
]


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize(("write", "change", "verdict"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_verdict(write: Write, change: Change, verdict: Check | None, isolation: Isolation) -> None:
    """What rows one takes out of files is decided alike at both levels."""
    carried = followed(write, [change], Fake(**LOOK), REQUIRED[write.kind, isolation])
    assert [each.check for each in carried.conflicts] == ([] if verdict is None else [verdict])
    assert all(each.snapshot_id == 2 and each.detail and each.advice for each in carried.conflicts)


def carried(write: Write, *changes: Change, **look: Any) -> Followed:
    return followed(write, changes, Fake(**{**LOOK, **look}), REQUIRED[write.kind, SERIALIZABLE])


def test_a_delete_follows_its_row_into_the_compacted_file() -> None:
    found = carried(marking(D, 4), COMPACTED)
    assert (found.positions, found.removed, found.deletes) == ({"g": rows(14)}, (), ())


def test_an_update_follows_its_row_and_keeps_its_new_one() -> None:
    found = carried(marking(U, 4), COMPACTED)
    assert (found.positions, found.added) == ({"g": rows(14)}, (NEW,))


def test_a_delete_of_a_row_that_is_gone_with_its_file_is_nothing() -> None:
    assert carried(marking(D, 4), REMOVED).is_empty


def test_what_is_not_touched_stays_as_it_was_staged() -> None:
    write = marking(D, 1)
    assert carried(write, DELETED_SOME).is_unchanged(write)


def test_a_delete_file_with_positions_elsewhere_is_not_read() -> None:
    bounds = {2147483545: (7).to_bytes(8, "little")}
    elsewhere = replace(THEIR_MARK.file, file_path="unknown", lower_bounds=bounds, upper_bounds=bounds)
    change = theirs("overwrite", deletes=(replace(THEIR_MARK, file=elsewhere),), added=added(H))
    assert carried(marking(U, 4), change).conflicts == ()
    with pytest.raises(KeyError):
        carried(marking(U, 7), change)


def test_p19_a_row_deleted_concurrently_does_not_come_back_in_a_copy() -> None:
    found = carried(copying(U, 1), DELETED_SOME)
    # Row 4 of f is row 3 of the copy, which lacks row 1.
    assert (found.positions, [each.file_path for each in found.removed]) == ({"out": rows(3)}, ["f"])


def test_two_copies_of_one_file_leave_each_row_once() -> None:
    found = carried(copying(U, 1), COPIED)
    # Their copy goes whole, mine lacks the row they changed, which lives in their new file.
    assert [each.file_path for each in found.removed] == ["g"]
    assert found.positions == {"out": rows(3)}


def test_a_deleted_file_that_was_compacted_goes_by_position() -> None:
    found = carried(removing(D), COMPACTED)
    assert (found.positions, found.removed) == ({"g": rows(*range(10, 20))}, ())


def test_a_compaction_carries_deletes_into_its_output() -> None:
    assert carried(copying(R), DELETED_SOME).positions == {"out": rows(4)}
    assert carried(copying(R), REMOVED).added == ()


def test_an_overwrite_does_not_mind_a_row_that_was_dead_before_anybody_copied_its_file() -> None:
    live = {"live": {"f": rows(0, 1, 2, 3, 5, 6, 7, 8, 9)}}
    left_out = theirs("overwrite", removed=(F,), added=added(file("g", 9), H), lineage_path="left-out")
    assert carried(removing(Kind.OVERWRITE), left_out, **live).replaced_twice == ()
    assert carried(removing(Kind.OVERWRITE), left_out).replaced_twice == (left_out,)


@pytest.mark.parametrize("kind", [Kind.OVERWRITE, Kind.REPLACE_PARTITIONS])
def test_two_that_replace_the_same_rows_conflict_if_the_first_put_there_what_the_second_takes_out(kind: Kind) -> None:
    matching = {"matching": frozenset({"h"})}
    assert verdicts(filtered(kind, SNAPSHOT), OVERWRITTEN, **matching) == [Check.ROW_OWNER]
    assert verdicts(filtered(kind, SERIALIZABLE), OVERWRITTEN, **matching) == [Check.NO_ADDED_ROWS]
    assert verdicts(filtered(kind, SNAPSHOT), OVERWRITTEN) == verdicts(filtered(kind, SERIALIZABLE), OVERWRITTEN) == []


def test_an_upsert_that_looked_does_not_mind_that_its_old_row_is_gone() -> None:
    write = replace(marking(U, 4), kind=Kind.UPSERT)
    assert verdicts(write, DELETED_SOME) == verdicts(write, REMOVED) == verdicts(write, COPIED_DELETE) == []
    assert verdicts(write, UPDATED_SOME) == verdicts(write, COPIED) == [Check.ROW_OWNER]
    assert verdicts(write, UPSERTED) == [Check.NO_NEW_DELETES]


def test_rows_that_others_deleted_before_are_not_counted_again() -> None:
    assert carried(marking(D, 1, 4), DELETED_SOME).gone_already == 1
    assert carried(marking(D, 1, 4), REMOVED).gone_already == 2
    assert carried(marking(D, 1, 4), COMPACTED).gone_already == 0


def test_a_row_that_was_deleted_and_then_left_out_of_a_copy_is_counted_once() -> None:
    compacted = theirs("replace", removed=(F,), added=added(file("g", 9)), lineage_path="left-out")
    assert carried(marking(D, 1, 4), DELETED_SOME, compacted).gone_already == 1
    assert carried(marking(D, 1, 4), DELETED_SOME, DELETED_SOME).gone_already == 1
    # The first copy still has the row, under a delete of its own; the second one does not.
    again = Change(4, 4, "replace", removed=(G,), added=added(file("k", 9)), lineage_path="again")
    lineages = {**LOOK["lineages"], "whole": Lineage({"g": (Run("f", 0, 10),)}), "again": Lineage({"k": OTHER_NINE})}
    whole = theirs("replace", removed=(F,), added=added(G), lineage_path="whole")
    assert carried(marking(D, 1, 4), DELETED_SOME, whole, again, lineages=lineages).gone_already == 1
    # Nor does it count where it was gone at my base, and the first copy was planned before that.
    live = {"f": rows(0, 1, 2, 3, 5, 6, 7, 8, 9)}
    assert carried(removing(D), whole, again, lineages=lineages, live=live).gone_already == 0


def test_an_overwrite_does_not_mind_that_a_deleted_row_is_left_out_of_a_copy_beside_new_rows() -> None:
    copied = theirs("overwrite", removed=(F,), added=added(file("g", 9), H), lineage_path="left-out")
    assert carried(removing(Kind.OVERWRITE), DELETED_SOME, copied).replaced_twice == ()


def test_rows_are_followed_through_several_changes() -> None:
    again = Change(
        3,
        3,
        "replace",
        added=added(file("k", 5)),
        removed=(file("g", 20),),
        lineage_path="again",
    )
    lineages = {**LOOK["lineages"], "again": Lineage({"k": (Run("g", 12, 5),)})}
    assert carried(marking(D, 4), COMPACTED, again, lineages=lineages).positions == {"k": rows(2)}


def test_copied_rows_stay_where_a_compaction_has_put_them() -> None:
    found = carried(copying(D, 1), COMPACTED)
    # Row 1 of f is row 11 of g; the other rows of f are in g, which stays, so the copy of them is not needed.
    assert (found.positions, found.removed, found.added) == ({"g": rows(11)}, (), ())
    found = carried(copying(U, 1), COMPACTED)
    assert (found.positions, found.removed, found.added) == ({"g": rows(11)}, (), (NEW,))


def test_the_record_of_a_carried_copy_names_the_files_it_really_replaced() -> None:
    found = carried(copying(D, 1), COPIED)
    assert [each.file_path for each in found.removed] == ["g"]
    assert found.lineage is not None
    # Row 1 is deleted here, row 4 was changed there: row 3 of the copy has no source any more.
    assert found.lineage.outputs["out"] == (Run("g", 0, 1), Run("g", 2, 2), Run("", 0, 1), Run("g", 4, 5))


# Rows that were read


def reading(**changes: Any) -> Write:
    where = parse_filter("id > 3", HEAD.schema())
    return mine(Kind.APPEND, added=(NEW,), reads=(Read(where, sees_removals=True),), **changes)


SEEN = {"seen": {"f": (F, rows(4, 5))}}
NOT_SEEN = {"seen": {"f": (F, rows(7))}}
READ_ROWS: list[tuple[str, Change, dict[str, Any], Check | None]] = [
    ("a row that was read is deleted", DELETED_SOME, SEEN, Check.NO_NEW_DELETE_FILES),
    ("another row is deleted", DELETED_SOME, NOT_SEEN, BOTH),
    ("a row that was read is upserted", UPSERTED, SEEN, Check.NO_NEW_DELETE_FILES),
    ("another row is upserted", UPSERTED, NOT_SEEN, BOTH),
    ("the file of a row that was read goes", REMOVED, SEEN, Check.NO_REMOVED_ROWS),
    ("a row that was read is changed by copying", COPIED, SEEN, Check.NO_REMOVED_ROWS),
    ("another row is changed by copying", COPIED, NOT_SEEN, BOTH),
    ("the file is compacted", COMPACTED, SEEN, BOTH),
    ("the file is replaced without a record", COMPACTED_UNTRACED, SEEN, Check.NO_REMOVED_ROWS),
]


@pytest.mark.parametrize(("change", "look", "verdict"), [row[1:] for row in READ_ROWS], ids=[r[0] for r in READ_ROWS])
def test_p22_rows_that_were_read_must_stay(change: Change, look: dict[str, Any], verdict: Check | None) -> None:
    assert [each.check for each in carried(reading(), change, **look).conflicts] == ([verdict] if verdict else [])


def test_rows_that_were_read_are_only_looked_up_where_a_delete_by_key_may_reach_them() -> None:
    look = Fake(**{**LOOK, "seen": {"f": (F, rows(4)), "g": (G, rows(4))}})
    asked: list[str] = []
    look.on_rows = asked.append
    followed(reading(), [UPSERTED, UPSERTED], look, REQUIRED[Kind.APPEND, SERIALIZABLE])
    assert asked == ["f"]


def verdicts(write: Write, *changes: Change, **look: Any) -> list[Check]:
    history = History(changes, base_is_ancestor=True)
    _, found = checked(write, history, Fake(**{**LOOK, **look}))
    return [Check(each.check) for each in found]


APPENDED = theirs("append", added=added(H))


def filtered(kind: Kind, isolation: Isolation) -> Write:
    return mine(kind, removed=(F,), isolation=isolation, reads=(Read(parse_filter("id > 3", HEAD.schema())),))


@pytest.mark.parametrize("kind", [Kind.OVERWRITE, Kind.REPLACE_PARTITIONS, Kind.DELETE, Kind.UPDATE])
def test_added_rows_conflict_at_serializable_if_they_match(kind: Kind) -> None:
    match = {"matching": frozenset({"h"})}
    assert verdicts(filtered(kind, SERIALIZABLE), APPENDED, **match) == [Check.NO_ADDED_ROWS]
    assert verdicts(filtered(kind, SERIALIZABLE), APPENDED) == []
    assert verdicts(filtered(kind, SNAPSHOT), APPENDED, **match) == []


def test_bounds_rule_out_a_file_without_reading_it() -> None:
    far = DataFile(
        "far", 1, 10, lower_bounds={1: (1).to_bytes(8, "little")}, upper_bounds={1: (2).to_bytes(8, "little")}
    )
    change = theirs("append", added=added(far))
    assert verdicts(filtered(Kind.DELETE, SERIALIZABLE), change, matching=frozenset({"far"})) == []


def test_the_record_of_copies_is_not_read_for_files_that_bounds_rule_out() -> None:
    far = DataFile(
        "far", 1, 10, lower_bounds={1: (1).to_bytes(8, "little")}, upper_bounds={1: (2).to_bytes(8, "little")}
    )
    asked: list[str] = []
    for change in (theirs("overwrite", added=added(far), lineage_path="copied"), COPIED):
        verdicts(mine(Kind.DELETE, reads=filtered(Kind.DELETE, SERIALIZABLE).reads), change, on_lineage=asked.append)
    assert asked == ["copied"]


def test_copied_rows_are_not_added_rows() -> None:
    everything = {"matching": frozenset({"g", "h"})}
    write = mine(Kind.DELETE, reads=(Read(parse_filter("true", HEAD.schema())),))
    assert verdicts(write, COMPACTED, **everything) == []
    assert verdicts(write, COPIED, **everything) == [Check.NO_ADDED_ROWS]
    assert verdicts(write, COPIED, matching=frozenset({"g"})) == []


# Appended rows that were deleted meanwhile


@pytest.mark.parametrize(
    ("policy", "asked", "verdict", "dropped"),
    [
        ("abort", rows(1), Check.NOT_DELETED, {}),
        ("abort", rows(), None, {}),
        ("drop", rows(1), None, {"new": rows(1)}),
    ],
)
def test_p23_policy(policy: Any, asked: BitMap64, verdict: Check | None, dropped: dict[str, BitMap64]) -> None:
    write = mine(Kind.APPEND, added=(NEW,), on_deleted=policy)
    found = carried(write, REMOVED, asked={"new": asked})
    assert [each.check for each in found.conflicts] == ([verdict] if verdict else [])
    assert found.positions == dropped


def test_files_of_another_snapshot_are_added_once() -> None:
    write = mine(Kind.APPEND, added=(H,), owns_files=False)
    assert verdicts(write, APPENDED) == [Check.ADDED_ONCE]
    assert verdicts(write, theirs("append", added=added(G))) == []


# Against the head


REQUIRED_COLUMN = {"id": 3, "name": "must", "type": "int", "required": True}
OPTIONAL_COLUMN = {"id": 3, "name": "may", "type": "int", "required": False}
RENAMED = [FIELDS[0], {**FIELDS[1], "name": "title"}]
TEXT_ID = [{**FIELDS[0], "type": "string"}, FIELDS[1]]
BRANCH = {"snapshots": [snapshot(1)], "refs": {"b": {"snapshot-id": 1, "type": "branch"}}}
TWO_SPECS = {"partition_specs": [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": []}]}


def schema(*fields: dict[str, Any], keys: Iterable[int] = ()) -> dict[str, Any]:
    return {
        "schemas": [
            {"type": "struct", "schema-id": 0, "fields": list(fields), "identifier-field-ids": list(keys)},
        ]
    }


def upserting(**changes: Any) -> Write:
    return appending(NEW, kind=Kind.UPSERT, keys=(1,), **changes)


HEADS: list[tuple[str, Any, Any, Check | None]] = [
    ("append × same head", appending(NEW), HEAD, None),
    ("append × dropped and recreated", appending(NEW, table_uuid="other"), HEAD, Check.SAME_TABLE),
    ("change × same table", MetadataChange(HEAD.uuid, PropertyChange()), HEAD, None),
    ("change × dropped and recreated", MetadataChange("other", PropertyChange()), HEAD, Check.SAME_TABLE),
    ("append × column added", appending(NEW), metadata(**schema(*FIELDS, OPTIONAL_COLUMN)), None),
    (
        "append × required column added",
        appending(NEW),
        metadata(**schema(*FIELDS, REQUIRED_COLUMN)),
        Check.SCHEMA_COMPATIBLE,
    ),
    ("append × my column dropped", appending(NEW), metadata(**schema(FIELDS[0])), Check.SCHEMA_COMPATIBLE),
    ("append × my column renamed", appending(NEW), metadata(**schema(*RENAMED)), None),
    ("delete × filter's column renamed", filtered(D, SERIALIZABLE), metadata(**schema(*RENAMED)), None),
    (
        "delete × filter's column dropped",
        filtered(D, SERIALIZABLE),
        metadata(**schema(FIELDS[1])),
        Check.SCHEMA_COMPATIBLE,
    ),
    (
        "delete × filter's column retyped",
        filtered(D, SERIALIZABLE),
        metadata(**schema(*TEXT_ID)),
        Check.SCHEMA_COMPATIBLE,
    ),
    ("append × my spec not listed", appending(DataFile("s", 1, 1, spec_id=4)), HEAD, Check.SPEC_LISTED),
    ("append to a branch × it exists", appending(NEW, branch="b"), metadata(**BRANCH), None),
    ("append to a branch × it is gone", appending(NEW, branch="b"), HEAD, Check.BRANCH_EXISTS),
    ("upsert × same keys", upserting(), metadata(**schema(*FIELDS, keys=[1])), None),
    ("upsert × other keys", upserting(), metadata(**schema(*FIELDS, keys=[])), Check.KEYS_UNCHANGED),
    ("upsert in the only spec", upserting(key_spec_id=0), metadata(**schema(*FIELDS, keys=[1])), None),
    (
        "upsert × another spec added",
        upserting(key_spec_id=0),
        metadata(**schema(*FIELDS, keys=[1]), **TWO_SPECS),
        Check.KEYS_UNCHANGED,
    ),
]


@pytest.mark.parametrize(("write", "head", "verdict"), [row[1:] for row in HEADS], ids=[row[0] for row in HEADS])
def test_against_the_head(write: Any, head: Any, verdict: Check | None) -> None:
    found = head_conflicts(write, head)
    assert [each.check for each in found] == ([] if verdict is None else [verdict])
    assert all(each.detail and each.advice for each in found)


def test_p25_only_what_names_no_file_and_read_nothing_stands_on_another_history() -> None:
    elsewhere = History((), base_is_ancestor=False)
    for write, verdict in [
        (appending(NEW), []),
        (upserting(), []),
        (marking(D, 1), [Check.BASE_IS_ANCESTOR]),
        (removing(Kind.OVERWRITE), [Check.BASE_IS_ANCESTOR]),
        (copying(R), [Check.BASE_IS_ANCESTOR]),
        (reading(), [Check.BASE_IS_ANCESTOR]),
    ]:
        _, found = checked(write, elsewhere, Fake())
        assert [each.check for each in found] == verdict


def test_every_check_that_is_required_has_a_row_for_both_verdicts() -> None:
    """Refs, the layout and sinks are looked at when an intent is replayed: test_metadata_changes.py."""
    refusing = {row[3] for row in (*ROWS, *READ_ROWS, *HEADS)} - {None}
    refusing |= {Check.NO_ADDED_ROWS, Check.NOT_DELETED, Check.BASE_IS_ANCESTOR, Check.ADDED_ONCE}
    refusing |= {Check.REFS_UNCHANGED, Check.LAYOUT_UNCHANGED, Check.SINK_UNMOVED}
    assert refusing == {check for checks in REQUIRED.values() for check in checks}


def test_snapshot_isolation_drops_what_was_read_and_nothing_else() -> None:
    reads = {Check.NO_ADDED_ROWS, Check.NO_REMOVED_ROWS, Check.NO_NEW_DELETE_FILES}
    for kind in Kind:
        dropped = set(REQUIRED[kind, SERIALIZABLE]) - set(REQUIRED[kind, SNAPSHOT])
        assert dropped <= reads | ({Check.BASE_IS_ANCESTOR} if kind is Kind.APPEND else set())
