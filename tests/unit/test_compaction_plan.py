"""Plans of compactions: pure functions of files, deletes and options."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from frazil.errors import InvalidInput, Unsupported
from frazil.model import Content, DataFile
from frazil.read.plan import DeleteRef, FileTask
from frazil.services.compaction import CompactionPlan, plan
from frazil.services.options import MEANINGLESS, RewriteOptions, rewrite_options

MIB = 1024 * 1024


def options(given: dict[str, Any] | None = None, *, is_ordered: bool = False, **properties: str) -> RewriteOptions:
    return rewrite_options(given or {}, properties, {0: None, 1: None}, is_ordered=is_ordered)


def task(name: str, size: int = MIB, rows: int = 100, deletes: int = 0, part: str = "a", spec_id: int = 0) -> FileTask:
    refs = (DeleteRef(position_deletes(f"{name}-d{at}", name), 2) for at in range(deletes))
    return FileTask(DataFile(name, rows, size, spec_id, (part,)), 1, 1, tuple(refs))


def position_deletes(path: str, of: str) -> DataFile:
    return DataFile(path, 10, 10, content=Content.POSITION_DELETES, referenced_data_file=of)


def planned(*tasks: FileTask, deleted: Any = None, **given: Any) -> CompactionPlan:
    named = {name.replace("_", "-").replace("progress-", "progress."): value for name, value in given.items()}
    rows: dict[str, int | None] = deleted or {}
    return plan(
        tasks,
        options(named),
        table="s.t",
        snapshot_id=7,
        deleted_rows=lambda task: rows.get(task.file.file_path, 10 * len(task.deletes)),
    )


def groups(found: CompactionPlan) -> list[tuple[str, ...]]:
    return [group.files for group in found.groups]


def test_small_files_of_one_partition_go_together_up_to_the_target() -> None:
    files = [task(f"{part}{n}", 200 * MIB, part=part) for n in range(3) for part in "ab"]
    assert groups(planned(*files)) == [("a0", "a1"), ("b0", "b1")]
    assert groups(planned(*files, target_file_size_bytes=600 * MIB)) == [("a0", "a1", "a2"), ("b0", "b1", "b2")]


def test_files_of_a_good_size_stay() -> None:
    files = [task("a", 400 * MIB), task("b", 512 * MIB), task("c", 900 * MIB)]
    assert groups(planned(*files)) == []


def test_a_file_that_is_too_large_is_split() -> None:
    assert groups(planned(task("a", 1000 * MIB), task("b", 500 * MIB))) == [("a",)]
    assert groups(planned(task("a", 1000 * MIB), max_file_size_bytes=2000 * MIB)) == []


def test_few_files_stay_unless_one_has_a_reason() -> None:
    assert groups(planned(task("a"))) == []
    assert groups(planned(task("a"), task("b"), min_input_files=3)) == []
    assert groups(planned(task("a"), task("b", deletes=1), min_input_files=3)) == [("a", "b")]
    assert groups(planned(task("a"), rewrite_all="true")) == [("a",)]


def test_without_thresholds_every_delete_counts() -> None:
    big = 500 * MIB
    assert groups(planned(task("a", big, deletes=1), task("b", big))) == [("a",)]


def test_a_delete_file_that_names_no_row_of_the_file_does_not_count() -> None:
    shared = DeleteRef(DataFile("d", 10, 10, content=Content.POSITION_DELETES), 2)
    one = FileTask(DataFile("a", 100, 500 * MIB, 0, ("a",)), 1, 1, (shared,))
    assert groups(planned(one, deleted={"a": 0})) == []
    assert groups(planned(one, deleted={"a": 1})) == [("a",)]


def test_thresholds_of_deletes() -> None:
    big = 500 * MIB
    files = [task("a", big, deletes=1), task("b", big, deletes=3), task("c", big, deletes=4)]
    assert groups(planned(*files, delete_file_threshold=4)) == [("b",), ("c",)], "and 0.3 of the rows, as in Iceberg"
    assert groups(planned(*files, delete_ratio_threshold=0.4)) == [("c",)]
    assert groups(planned(*files, delete_ratio_threshold=0.4, delete_file_threshold=3)) == [("b",), ("c",)]
    assert groups(planned(*files, deleted={"c": None}, delete_ratio_threshold=0.1)) == [("a",), ("b",)]


def test_a_group_is_bounded() -> None:
    files = [task(f"f{n}", 100 * MIB) for n in range(6)]
    assert [len(each) for each in groups(planned(*files, max_file_group_input_files=3))] == [3, 3]
    assert [len(each) for each in groups(planned(*files, max_file_group_size_bytes=200 * MIB))] == [2, 2, 2]


def test_the_order_and_number_of_what_is_rewritten() -> None:
    files = [task(f"{p}{n}", size * MIB, part=p) for p, count, size in (("a", 2, 9), ("b", 4, 1)) for n in range(count)]
    assert [len(each) for each in groups(planned(*files, rewrite_job_order="files-desc"))] == [4, 2]
    assert [len(each) for each in groups(planned(*files, rewrite_job_order="bytes-desc"))] == [2, 4]
    assert [len(each) for each in groups(planned(*files, rewrite_job_order="bytes-asc"))] == [4, 2]
    assert [len(each) for each in groups(planned(*files, max_files_to_rewrite=4))] == [2]


def test_commits_have_a_files_worth_of_data_and_are_few() -> None:
    files = [task(f"f{n}", 10 * MIB, part=str(n // 2)) for n in range(40)]
    assert len(planned(*files).commits) == 1, "less than one file's target"
    many = planned(*files, target_file_size_bytes=20 * MIB)
    assert [len(each) for each in many.commits] == [2] * 10
    few = planned(*files, target_file_size_bytes=20 * MIB, **{"partial_progress.max_commits": 3})
    assert len(few.commits) == 3
    one = planned(*files, target_file_size_bytes=20 * MIB, **{"partial_progress.enabled": "false"})
    assert len(one.commits) == 1
    assert many.groups == one.groups


def test_files_of_another_spec_are_moved() -> None:
    big = 500 * MIB
    files = [task("a", big), task("b", big, spec_id=1)]
    assert groups(planned(*files, output_spec_id=1)) == [("a",)]
    with pytest.raises(InvalidInput, match="no partition spec 9"):
        options({"output-spec-id": "9"})


def test_a_plan_is_json() -> None:
    raw = orjson.loads(orjson.dumps(planned(task("a"), task("b", deletes=1)).to_dict()))
    assert (raw["table"], raw["snapshot_id"], raw["files"], raw["bytes"]) == ("s.t", 7, 2, 2 * MIB)
    (group,) = raw["commits"][0]
    assert (group["files"], group["rows"], group["delete_files"], group["partition"]) == (["a", "b"], 200, 1, ["a"])


def test_defaults_follow_the_target() -> None:
    properties: Any = {"write.target-file-size-bytes": "1000"}
    found = options(**properties)
    assert (found.target, found.smallest, found.largest) == (1000, 750, 1800)
    assert options(is_ordered=True).rewrite_all
    assert not options().rewrite_all


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target-file-size-bytes", "x"),
        ("min-input-files", "0"),
        ("delete-ratio-threshold", "1.5"),
        ("delete-ratio-threshold", "nan"),
        ("rewrite-all", "perhaps"),
        ("rewrite-job-order", "size"),
        ("partial-progress.max-commits", "0"),
        ("max-files-to-rewrite", "-1"),
        ("min-file-size-bytes", str(600 * MIB)),
        ("max-file-size-bytes", "1"),
    ],
)
def test_bad_options_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        options({name: value})


def test_unknown_options_are_refused_with_a_suggestion() -> None:
    with pytest.raises(InvalidInput, match="'min-input-file'") as error:
        options({"min-input-file": "5"})
    assert "min-input-files" in str(error.value)
    assert options(dict.fromkeys(MEANINGLESS, "1")) == options()
    with pytest.raises(Unsupported, match="use-starting-sequence-number"):
        options({"use-starting-sequence-number": "false"})
