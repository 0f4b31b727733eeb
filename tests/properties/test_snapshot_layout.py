"""How manifests are laid out, and whether the totals of snapshots add up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.commit.operations import Kind
from frazil.commit.snapshot_layout import Effect, lay_out, summary_counts
from frazil.model import Content, DataFile, Manifest, Snapshot

TARGET = "commit.manifest.target-size-bytes"
COUNT = "commit.manifest.min-count-to-merge"


@st.composite
def manifests(draw: st.DrawFn, prefix: str, least: int = 0) -> list[Manifest]:
    parts = st.tuples(st.integers(1, 400), st.integers(0, 2), st.integers(0, 1))
    return [
        Manifest(f"{prefix}-{at}", size, spec, content, 1, 1, 1, added_files_count=1)
        for at, (size, spec, content) in enumerate(draw(st.lists(parts, min_size=least, max_size=14)))
    ]


@settings(max_examples=400)
@given(manifests("old"), manifests("new", 1), st.integers(1, 12), st.integers(1, 900), st.integers(1, 3), st.booleans())
def test_every_manifest_is_in_one_bin_and_a_bin_is_of_one_kind(
    old: list[Manifest], new: list[Manifest], least: int, target: int, attempt: int, later: bool
) -> None:
    properties = {COUNT: str(least), TARGET: str(target)}
    bins = lay_out(old, new, properties, attempt, later=later).bins
    assert Counter(each for group in bins for each in group) == Counter([*old, *new])
    minimum = least * (1 if attempt == 1 and not later else 2)
    for content in (0, 1):
        of_content = [each for each in (*new, *old) if each.content == content]
        found = [group for group in bins if group[0].content == content]
        merged = [group for group in found if len(group) > 1]
        if len(of_content) < minimum:
            # Below the count nothing is merged, and the newest comes first.
            assert [each for group in found for each in group] == of_content
            assert not merged
        for group in found:
            assert {(each.content, each.partition_spec_id) for each in group} == {(content, group[0].partition_spec_id)}
            assert len(group) == 1 or sum(each.manifest_length for each in group) <= target
            # Entries keep their order, from the newest to the oldest.
            assert [of_content.index(each) for each in group] == sorted(of_content.index(each) for each in group)


@given(manifests("old"), manifests("new", 1), st.integers(1, 3))
def test_without_merging_the_list_only_grows_in_front(old: list[Manifest], new: list[Manifest], attempt: int) -> None:
    properties = {"commit.manifest-merge.enabled": "false", COUNT: "1"}
    assert [each for (each,) in lay_out(old, new, properties, attempt).bins] == [*new, *old]


@st.composite
def effects(draw: st.DrawFn, there: list[DataFile], at: int) -> Effect:
    """Something that takes away what is there, and adds some."""
    gone = draw(st.lists(st.sampled_from(there), unique_by=id)) if there else []
    shapes = draw(st.lists(st.tuples(st.sampled_from(Content), st.integers(0, 50), st.integers(1, 99)), max_size=4))
    new = [DataFile(f"f{at}-{n}", rows, size, content=content) for n, (content, rows, size) in enumerate(shapes)]

    def of(files: list[DataFile], *, data: bool) -> tuple[DataFile, ...]:
        return tuple(each for each in files if (each.content == Content.DATA) == data)

    kind = Kind.OVERWRITE if gone or of(new, data=False) else Kind.APPEND
    return Effect(kind, of(new, data=True), of(new, data=False), of(gone, data=True), of(gone, data=False))


@settings(max_examples=200)
@given(st.data())
def test_the_totals_of_a_history_are_the_sums_over_the_files_that_are_there(data: st.DataObject) -> None:
    there: list[DataFile] = []
    parent: Snapshot | None = None
    for at in range(1, data.draw(st.integers(2, 6))):
        effect = data.draw(effects(there, at))
        removed = {id(each) for each in (*effect.removed, *effect.removed_deletes)}
        there = [*(each for each in there if id(each) not in removed), *effect.added, *effect.deletes]
        summary = summary_counts(effect, parent)
        parent = Snapshot(at, None, at, at, None, {"operation": effect.operation, **summary})
        rows = Counter[Content]()
        for each in there:
            rows[each.content] += each.record_count
        assert {key: int(value) for key, value in summary.items() if key.startswith("total-")} == {
            "total-data-files": sum(each.content == Content.DATA for each in there),
            "total-delete-files": sum(each.content != Content.DATA for each in there),
            "total-records": rows[Content.DATA],
            "total-position-deletes": rows[Content.POSITION_DELETES],
            "total-equality-deletes": rows[Content.EQUALITY_DELETES],
            "total-files-size": sum(each.file_size_in_bytes for each in there),
        }


@given(st.data())
def test_an_unknown_total_stays_unknown(data: st.DataObject) -> None:
    known = data.draw(st.sets(st.sampled_from(["data-files", "records", "files-size", "delete-files"])))
    parent = Snapshot(1, None, 1, 1, None, {f"total-{key}": "7" for key in known})
    summary = summary_counts(Effect(Kind.APPEND, (DataFile("f", 2, 5),)), parent)
    assert {key for key in summary if key.startswith("total-")} == {f"total-{key}" for key in known}
