"""Operations that are rebased over concurrent changes: the resulting rows are the expected ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from frazil.commit.checks import Check
from frazil.commit.conflicts import required
from frazil.commit.operations import Kind, Write
from frazil.commit.rebase import unchanged
from frazil.model import Change, Isolation
from properties.world import KINDS, FullInspector, World, expanded, operations, worlds
from unit.rebasing import Followed, followed

MORE = settings(max_examples=250)


@dataclass
class Race:
    """One operation, planned on ``base``, and the concurrent changes that led to ``now``."""

    base: World
    now: World
    mine: Write
    changes: list[Change]
    winners: list[Write]

    def carried(self) -> Followed:
        return followed(self.mine, self.changes, FullInspector(self.base, self.now), required(self.mine))


@st.composite
def races(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS, theirs: tuple[str, ...] = (*KINDS, "key", "add")) -> Race:
    base = draw(worlds())
    mine = draw(operations(base, kinds).filter(lambda write: write is not None))
    assert mine is not None
    now = base.copy()
    changes, winners = [], []
    for _ in range(draw(st.integers(1, 4))):
        write = draw(operations(now, theirs))
        if write is not None:
            changes.append(now.land(write))
            winners.append(write)
    return Race(base, now, mine, changes, winners)


def named(world: World, write: Write) -> tuple[set[int], set[int], set[int]]:
    """The names of the rows that an operation deletes, changes and copies."""
    moved = {world.files[path][at] for path, rows in write.moved.items() for at in rows}
    copied = {world.files[path][at] for runs in write.copies.values() for path, at in expanded(runs)}
    gone = {world.files[path][at] for path, rows in write.positions.items() for at in rows}
    gone |= {name for file in write.removed for name in world.files[file.file_path]}
    return (gone - moved - copied) & world.rows().keys(), moved, copied


def new_rows(world: World, write: Write) -> set[int]:
    new = (file.file_path for file in write.added if file.file_path not in write.copies)
    return {name for path in new for name in world.files[path]}


def must_conflict(race: Race) -> bool:
    """A row that I change must be there as it was, and one that I delete must not live on with other values."""
    deleted, moved, _ = named(race.base, race.mine)
    if race.mine.kind is Kind.UPSERT:
        # Rows that were deleted concurrently are added again.
        return bool(moved & (race.now.changed | race.now.by_key))
    return bool(moved - race.now.rows().keys() or deleted & race.now.changed)


@MORE
@given(races(("mark", "copy", "drop", "put")))
def test_p26_rows_end_up_as_if_each_commit_had_been_made_after_the_other(race: Race) -> None:
    carried = race.carried()
    assert bool(carried.conflicts) == must_conflict(race), carried.conflicts
    if carried.conflicts:
        return
    deleted, moved, copied = named(race.base, race.mine)
    marked = {
        race.now.files[path][at] for path, rows in carried.positions.items() if path in race.now.live for at in rows
    }
    assert not marked & copied, "a delete by position always means that a row went or changed"
    expected = (race.now.rows().keys() - deleted - moved) | new_rows(race.base, race.mine)
    after = race.now.copy()
    after.take(race.mine, carried)
    assert after.rows().keys() == expected
    # Whether a row that is replaced by key was already deleted shows only when a copy omits it.
    gone = deleted - race.now.rows().keys()
    assert len(gone - race.now.by_key) <= carried.gone_already <= len(gone)


@MORE
@given(races(("compact",), ("mark", "copy", "drop", "key", "add")))
def test_p26_a_rewrite_changes_no_row_whatever_other_writers_did(race: Race) -> None:
    carried = race.carried()
    assert carried.conflicts == ()
    after = race.now.copy()
    after.take(race.mine, carried)
    assert after.rows().keys() == race.now.rows().keys()


@MORE
@given(races(("compact",)))
def test_two_rewrites_of_one_file_never_land_both(race: Race) -> None:
    carried = race.carried()
    first = race.winners[0] if race.winners else None
    mine = {file.file_path for file in race.mine.removed}
    if first is not None and first.kind is Kind.REWRITE and mine & {file.file_path for file in first.removed}:
        assert [each.check for each in carried.conflicts][:1] == [Check.FILES_NOT_REMOVED]
    if not carried.conflicts:
        after = race.now.copy()
        after.take(race.mine, carried)
        assert after.rows().keys() == race.now.rows().keys()


@MORE
@given(races(("copy", "compact"), KINDS))
def test_p26_the_lineage_of_a_rebased_copy_has_the_positions_at_the_head(race: Race) -> None:
    """An operation based on the head tracks its rows through the copies by this lineage."""
    carried = race.carried()
    if carried.conflicts:
        return
    lineage = carried.lineage or race.mine.lineage
    places = race.now.rows()
    deleted, moved, copied = named(race.base, race.mine)
    tracked = set()
    # A copy of which no row is wanted any more is not put into the table.
    for path in {file.file_path for file in carried.added} & lineage.outputs.keys():
        for name, (at, source) in zip(
            race.base.files[path], enumerate(expanded(lineage.outputs[path])), strict=not carried.lineage
        ):
            if at not in carried.positions.get(path, ()):
                assert places[name] == source
                tracked.add(name)
    whole = {file.file_path for file in carried.removed}
    changed = {race.now.files[path][at] for path, rows in lineage.changed.items() for at in rows}
    for name, (path, _) in places.items():
        if path in whole:
            assert name in tracked | changed | deleted, f"row {name} of {path} is lost"
            assert (name in changed) == (name in moved)
            assert (name in tracked) == (name in copied)


@MORE
@given(st.data())
def test_p26_a_delete_finds_its_rows_through_two_rewrites_in_a_row(data: st.DataObject) -> None:
    base = data.draw(worlds())
    mine = data.draw(operations(base, ("mark",)).filter(lambda write: write is not None))
    assert mine is not None
    now = base.copy()
    changes = []
    for _ in range(2):
        write = data.draw(operations(now, ("compact",)))
        if write is not None:
            changes.append(now.land(write))
    carried = followed(mine, changes, FullInspector(base, now), required(mine))
    assert carried.conflicts == ()
    wanted = {base.files[path][at] for path, rows in mine.positions.items() for at in rows}
    after = now.copy()
    after.take(mine, carried)
    assert after.rows().keys() == (now.rows().keys() - wanted) | new_rows(base, mine)


@given(worlds(), st.data())
def test_an_operation_is_unchanged_if_its_files_are(world: World, data: st.DataObject) -> None:
    mine = data.draw(operations(world).filter(lambda write: write is not None))
    assert mine is not None
    # An operation that deletes all rows of a file by position may also remove the file.
    assume(all(len(rows) < len(world.files[path]) for path, rows in mine.positions.items()))
    now = world.copy()
    append = data.draw(operations(now, ("add",)))
    assert append is not None
    for changes in ([], [now.land(append)]):
        carried = followed(mine, changes, FullInspector(world, now), required(mine))
        assert carried.is_unchanged(mine)
        assert unchanged(mine).is_unchanged(mine)
        assert carried.conflicts == ()


@MORE
@given(races())
def test_a_stricter_level_finds_all_that_a_weaker_one_finds(race: Race) -> None:
    found = {}
    for level in Isolation:
        checks = required(replace(race.mine, isolation=level))
        carried = followed(race.mine, race.changes, FullInspector(race.base, race.now), checks)
        found[level] = {(each.check, each.snapshot_id, each.files) for each in carried.conflicts}
    assert found[Isolation.SNAPSHOT] <= found[Isolation.SERIALIZABLE]
