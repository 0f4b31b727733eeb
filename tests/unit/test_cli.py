"""The command as a person or a script meets it: what is printed where, and which exit code comes back."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import re
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import frazil
from frazil import cli, errors
from frazil.cli import _output as out
from frazil.cli._errors import exit_code, explain, masked
from frazil.cli._formats import RowFormat, format_of
from frazil.cli._snippets import snippets
from frazil.commit.context import Phase
from frazil.errors import InvalidInput
from frazil.model import Ident
from frazil.verify.doctor import Finding, Report
from surface.test_resurrection import foreign_rewrite


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("FRAZIL_URI", raising=False)
    monkeypatch.delenv("FRAZIL_DEBUG", raising=False)

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([str(each) for each in arguments])
        printed = capsys.readouterr()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 0, printed.out, printed.err)

    return call


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with one table of three rows."""
    folder = tmp_path / "lake"
    with frazil.connect(str(folder)) as opened:
        opened.create_namespace("shop")
        table = opened.create_table("shop.events", "id bigint not null, name string", partition_by=["bucket(4, id)"])
        table.append([{"id": 1, "name": "a"}, {"id": 2, "name": "[red]b[/red]"}, {"id": 3, "name": None}])
    return folder


# Reading


def test_tables_lists_names_for_people_and_objects_for_programs(run: Run, lake: Path) -> None:
    assert run("tables", "--uri", lake).out == "shop.events\n"
    assert run("tables", "shop", "--uri", lake, "--output", "json").json == [{"table": "shop.events"}]


def test_the_lake_may_be_named_before_the_verb_behind_it_or_by_the_environment(
    run: Run, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--uri", lake, "tables").out == "shop.events\n"
    assert run("--uri", "/nowhere/at/all", "tables", "--uri", lake).out == "shop.events\n"
    monkeypatch.setenv("FRAZIL_URI", str(lake))
    assert run("tables").out == "shop.events\n"


def test_without_a_lake_the_advice_says_how_to_name_one(run: Run) -> None:
    answer = run("tables")
    assert answer.code == 2
    assert "FRAZIL_URI" in answer.err
    assert answer.out == ""


def test_a_typo_in_the_path_is_an_error_and_creates_nothing(run: Run, tmp_path: Path) -> None:
    wrong = tmp_path / "lkae"
    for verb in (["tables"], ["show", "shop.events"], ["head", "shop.events"], ["history", "shop.events"]):
        assert run(*verb, "--uri", wrong).code == 2
    assert not wrong.exists()


def test_appending_to_a_lake_that_is_not_there_creates_nothing(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id\n1\n")
    assert run("append", "shop.events", rows, "--uri", tmp_path / "lkae").code == 2
    assert not (tmp_path / "lkae").exists()


def test_show_prints_the_facts_and_how_to_open_the_table_elsewhere(run: Run, lake: Path) -> None:
    text = run("show", "shop.events", "--uri", lake).out
    for fact in ("bucket(4, id)", "long", "3 rows", 'SqlCatalog("frazil"', "JdbcCatalog", str(lake)):
        assert fact in text


def test_show_as_json_has_the_documented_fields(run: Run, lake: Path) -> None:
    facts = run("show", "shop.events", "--uri", lake, "--output", "json").json
    assert set(facts) == {
        "table", "uuid", "format_version", "location", "metadata_location", "schema", "keys", "partitioning",
        "sort_order", "properties", "refs", "snapshot", "open_with",
    }  # fmt: skip
    assert facts["schema"][0] == {"id": 1, "name": "id", "type": "long", "required": True, "doc": None}
    assert facts["snapshot"]["summary"]["total-records"] == "3"


def test_the_pyiceberg_lines_of_show_open_the_table(run: Run, lake: Path) -> None:
    snippet = run("show", "shop.events", "--uri", lake, "--output", "json").json["open_with"]["pyiceberg"]
    names: dict[str, Any] = {}
    exec(snippet, names)
    try:
        assert names["table"].scan().to_arrow().num_rows == 3
    finally:
        names["table"].catalog.close()


def test_history_is_newest_first_and_bounded(run: Run, lake: Path) -> None:
    with frazil.connect(str(lake)) as opened:
        opened.table("shop.events").append([{"id": 4, "name": "d"}])
    found = run("history", "shop.events", "--uri", lake, "--output", "json").json
    assert [each["summary"]["total-records"] for each in found] == ["4", "3"]
    assert found[0]["parent_id"] == found[1]["snapshot_id"]
    assert len(run("history", "shop.events", "-n", 1, "--uri", lake, "--output", "json").json) == 1
    assert len(run("history", "shop.events", "-n", 0, "--uri", lake, "--output", "json").json) == 2


def test_history_without_a_table_is_that_of_all_tables(run: Run, lake: Path) -> None:
    found = run("history", "--uri", lake, "--output", "json").json
    assert [each["committed_at"] for each in found] == sorted((each["committed_at"] for each in found), reverse=True)
    assert found[-1]["verb"] == "create"
    assert {table["table"] for each in found for table in each["tables"]} >= {"shop.events"}
    assert len(run("history", "-n", 1, "--uri", lake, "--output", "json").json) == 1
    assert "shop.events (create)" in run("history", "-n", 0, "--uri", lake).out


def test_history_of_a_branch_that_is_not_there_names_those_that_are(run: Run, lake: Path) -> None:
    answer = run("history", "shop.events", "--branch", "mian", "--uri", lake)
    assert answer.code == 2
    assert "main" in answer.err


def test_files_lists_what_is_live(run: Run, lake: Path) -> None:
    found = run("files", "shop.events", "--uri", lake, "--output", "json").json
    assert sum(each["rows"] for each in found) == 3
    assert {each["deletes"] for each in found} == {0}
    assert "id_bucket=" in run("files", "shop.events", "--uri", lake).out


def test_head_filters_projects_and_limits(run: Run, lake: Path) -> None:
    arguments = ["head", "shop.events", "--where", "id >= 2", "--columns", "id", "--uri", lake, "--output", "json"]
    rows = run(*arguments).json
    assert sorted(row["id"] for row in rows) == [2, 3]
    assert set(rows[0]) == {"id"}
    assert len(run(*arguments, "-n", 1).json) == 1


def test_values_that_look_like_markup_are_printed_as_they_are(run: Run, lake: Path) -> None:
    assert "[red]b[/red]" in run("head", "shop.events", "--uri", lake).out


def test_a_bad_filter_is_bad_input(run: Run, lake: Path) -> None:
    answer = run("head", "shop.events", "--where", "id >", "--uri", lake)
    assert answer.code == 2
    assert answer.err.startswith("frazil: ")


@pytest.mark.parametrize("name", ["shop.evnets", "shpo.events"])
def test_what_is_not_there_has_its_own_exit_code(run: Run, lake: Path, name: str) -> None:
    answer = run("show", name, "--uri", lake)
    assert answer.code == 3
    assert name in answer.err
    assert "Traceback" not in answer.err


# Writing


def test_create_makes_lake_namespace_and_table(run: Run, tmp_path: Path) -> None:
    uri = tmp_path / "new"
    arguments = [
        "create",
        "a.b.t",
        "id bigint, ts timestamp",
        "--partition-by",
        "day(ts)",
        "--partition-by",
        "bucket(8, id)",
    ]
    made = run(*arguments, "--sort-by", "ts desc", "--keys", "id", "--uri", uri, "--output", "json")
    assert made.code == 0
    assert made.json["partitioning"] == ["day(ts)", "bucket(8, id)"]
    assert made.json["keys"] == ["id"]
    assert run("tables", "--uri", uri).out == "a.b.t\n"


@pytest.mark.parametrize(
    "wrong",
    [
        ["id bigin"],
        ["id bigint", "--partition-by", "dya(id)"],
        ["id bigint", "--sort-by", "ts desc"],
        ["id bigint", "--keys", "key"],
        ["id bigint", "--table-property", "owner"],
    ],
)
def test_a_table_that_cannot_be_made_leaves_no_lake_behind(run: Run, tmp_path: Path, wrong: list[str]) -> None:
    assert run("create", "shop.t", *wrong, "--uri", tmp_path / "fresh").code == 2
    assert not (tmp_path / "fresh").exists()


def test_a_namespace_is_made_in_a_lake_that_is_there(run: Run, lake: Path, tmp_path: Path) -> None:
    assert run("create-namespace", "eu", "--uri", lake).code == 0
    assert run("tables", "eu", "--uri", lake).code == 0
    assert run("create-namespace", "eu", "--uri", lake).code == 2
    assert run("create-namespace", "eu", "--exists-ok", "--uri", lake, "--output", "json").json == {"namespace": "eu"}
    assert run("create-namespace", "eu", "--uri", tmp_path / "lkae").code == 2
    assert not (tmp_path / "lkae").exists()


def test_creating_a_table_twice_is_an_error_unless_told_otherwise(run: Run, lake: Path) -> None:
    again = run("create", "shop.events", "id bigint", "--uri", lake)
    assert again.code == 2
    assert "shop.events" in again.err
    assert run("create", "shop.events", "id bigint", "--exists-ok", "--uri", lake).code == 0


def write_rows(path: Path, kind: RowFormat) -> None:
    rows = pa.table({"id": pa.array([7, 8], pa.int64()), "name": ["x", None]})
    match kind:
        case RowFormat.PARQUET:
            pq.write_table(rows, path)
        case RowFormat.CSV:
            pacsv.write_csv(rows, path)
        case RowFormat.JSON:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
        case RowFormat.ARROW:
            with pa.ipc.new_file(str(path), rows.schema) as writer:
                writer.write_table(rows)


@pytest.mark.parametrize("kind", list(RowFormat))
def test_append_takes_each_format(run: Run, lake: Path, tmp_path: Path, kind: RowFormat) -> None:
    path = tmp_path / f"rows.{kind}"
    write_rows(path, kind)
    commit = run("append", "shop.events", path, "--uri", lake, "--output", "json")
    assert commit.code == 0
    assert commit.json["rows_inserted"] == 2
    rows = run("head", "shop.events", "--where", "id > 6", "--uri", lake, "--output", "json").json
    assert sorted(((row["id"], row["name"]) for row in rows), key=str) == [(7, "x"), (8, None)]


def test_append_takes_arrow_streams(run: Run, lake: Path, tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([7], pa.int64())})
    with pa.ipc.new_stream(str(tmp_path / "rows.arrows"), rows.schema) as writer:
        writer.write_table(rows)
    assert run("append", "shop.events", tmp_path / "rows.arrows", "--uri", lake).code == 0


def test_the_same_commit_id_is_applied_once(run: Run, lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_rows(path, RowFormat.CSV)
    arguments = ["append", "shop.events", path, "--commit-id", "load-1", "--uri", lake]
    assert "Appended 2 rows" in run(*arguments).out
    assert "Already committed" in run(*arguments).out
    assert len(run("head", "shop.events", "--uri", lake, "--output", "json").json) == 5


def test_merge_schema_adds_a_column_and_its_absence_is_an_error(run: Run, lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 9, "colour": "blue"}\n')
    refused = run("append", "shop.events", path, "--uri", lake)
    assert refused.code == 2
    assert "colour" in refused.err
    assert run("append", "shop.events", path, "--merge-schema", "--uri", lake).code == 0
    rows = run("head", "shop.events", "--where", "colour = 'blue'", "--uri", lake, "--output", "json").json
    assert [row["id"] for row in rows] == [9]


def test_csv_and_json_take_their_types_from_the_table(run: Run, tmp_path: Path) -> None:
    uri = tmp_path / "typed"
    ddl = "id bigint, price decimal(10,2), day date, at timestamp, code string, u uuid"
    run("create", "t.t", ddl, "--uri", uri)
    row = {
        "id": 1,
        "price": "2.50",
        "day": "2026-11-01",
        "at": "2026-11-01T12:00:00Z",
        "code": "007",
        "u": str(uuid.UUID(int=5)),
    }
    (tmp_path / "a.csv").write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps(row) + "\n")
    for name in ("a.csv", "b.jsonl"):
        answer = run("append", "t.t", tmp_path / name, "--uri", uri)
        assert answer.code == 0, answer.err
    with frazil.connect(str(uri)) as opened:
        rows = opened.table("t.t").scan().to_arrow().to_pylist()
    expected = {
        "id": 1,
        "price": decimal.Decimal("2.50"),
        "day": dt.date(2026, 11, 1),
        "at": dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC),
        "code": "007",
    }
    assert len(rows) == 2
    for found in rows:
        assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rows.jsonl", '{"at": "2026-11-01T12:00:00Z"}\n{"at": "2026-11-01T12:00:00"}\n', "Line 2"),
        ("rows.jsonl", '{"nested": ["2026-11-01"]}\n', "no time zone"),
        ("rows.csv", "at\n2026-11-01T12:00:00\n", "zone"),
    ],
)
def test_a_time_without_a_zone_is_refused_alike_in_json_and_csv(
    run: Run, tmp_path: Path, name: str, text: str, said: str
) -> None:
    run("create", "t.t", "at timestamp, nested array<timestamp>", "--uri", tmp_path / "lake")
    (tmp_path / name).write_text(text)
    answer = run("append", "t.t", tmp_path / name, "--uri", tmp_path / "lake")
    assert answer.code == 2
    assert said in answer.err


def test_a_name_that_appears_twice_in_a_json_object_is_refused(run: Run, lake: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 7, "name": "x", "id": 8}\n')
    answer = run("append", "shop.events", tmp_path / "rows.jsonl", "--uri", lake)
    assert answer.code == 2
    assert "'id' appears twice" in answer.err


def test_head_prints_times_beyond_pythons_calendar(run: Run, tmp_path: Path) -> None:
    uri, kind = tmp_path / "lake", pa.timestamp("us", tz="UTC")
    far = 300_000_000_000_000_000  # in the year 11476
    columns = {
        "at": pa.array([far, 0, None], kind),
        "nested": pa.array([[far], None, []], pa.list_(kind)),
        "parts": pa.array([{"x": far}, None, {"x": None}], pa.struct([("x", kind)])),
        "named": pa.array([[("k", far)], None, []], pa.map_(pa.string(), kind)),
    }
    with frazil.connect(str(uri)) as opened:
        opened.create_namespace("t")
        opened.create_table("t.t", as_=pa.table(columns))
    answer = run("head", "t.t", "--uri", uri, "--output", "json")
    assert answer.code == 0, answer.err
    first, second, third = answer.json
    assert first["at"].startswith("11476-")
    assert first["nested"] == [first["at"]]
    assert first["parts"] == {"x": first["at"]}
    assert first["named"] == [["k", first["at"]]]
    assert second["at"] == "1970-01-01T00:00:00+00:00"
    assert third == {"at": None, "nested": [], "parts": {"x": None}, "named": []}
    assert "11476-" in run("head", "t.t", "--uri", uri).out


def test_a_file_that_is_missing_empty_or_not_what_it_says_is_bad_input(run: Run, lake: Path, tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("this is no parquet")
    (tmp_path / "words.csv").write_text("id,name\nseven,x\n")
    (tmp_path / "rows.xyz").write_text("")
    for name in ("gone.csv", "text.parquet", "words.csv", "rows.xyz"):
        answer = run("append", "shop.events", tmp_path / name, "--uri", lake)
        assert answer.code == 2, name
        assert name in answer.err
        assert "Traceback" not in answer.err
    assert len(run("history", "shop.events", "--uri", lake, "--output", "json").json) == 1


def test_json_on_stdout_is_one_document_and_nothing_else(run: Run, lake: Path) -> None:
    for verb in (
        ["tables"],
        ["show", "shop.events"],
        ["history", "shop.events"],
        ["files", "shop.events"],
        ["version"],
    ):
        answer = run(*verb, "--uri", lake, "--output", "json")
        json.loads(answer.out)
        assert "\x1b" not in answer.out


def test_output_into_a_pipe_is_not_cut(lake: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "frazil", "files", "shop.events", "--uri", str(lake)],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "40"},
    )  # fmt: skip
    paths = [line.split()[-1] for line in done.stdout.splitlines() if ".parquet" in line]
    assert paths
    assert all(Path(path.removeprefix("file://")).is_file() for path in paths)


def shell(lake: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command line as a shell runs it; ``frazil`` in it is this one."""
    script = f'frazil() {{ "{sys.executable}" -m frazil "$@"; }}; {command}'
    environment = {**os.environ, "FRAZIL_URI": str(lake)}
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("command", ["show shop.events", "show shop.events --output json", "--help"])
def test_a_reader_that_leaves_early_is_no_error(lake: Path, command: str) -> None:
    done = shell(lake, f"frazil {command} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")


# Only Linux has the device that is always full; there it must be, so the case cannot go missing unseen.
@pytest.mark.parametrize("place", ["/dev/full", "&-"] if sys.platform == "linux" else ["&-"])
def test_an_answer_that_cannot_be_written_is_a_sentence(lake: Path, place: str) -> None:
    done = shell(lake, f"frazil show shop.events >{place}")
    assert done.returncode == 4
    assert done.stderr.startswith("frazil: Cannot write to stdout")
    assert len(done.stderr.splitlines()) == 1


# Errors


def test_ctrl_c_while_the_command_is_still_loading_is_not_a_traceback() -> None:
    interrupted = (
        "import sys, frazil, frazil.cli\n"
        "class Ctrl_C:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'frazil.cli._app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Ctrl_C())\n"
        "frazil.cli.main(['tables'])\n"
    )
    done = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "frazil: Interrupted.\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "shop.evnets"], '"frazil tables" lists'),
        (["tables", "shpo"], '"frazil create-namespace shpo"'),
        (["create", "shop.events", "id bigint"], "--exists-ok"),
        (["tables", "--uri", "/nowhere/at/all"], '"frazil create TABLE DDL"'),
        (["append", "shop.events", "rows.jsonl"], "--merge-schema"),
        (["create", "shop.new", "id bigint", "--partition-by", "dya(id)"], '--partition-by "day(ts)"'),
    ],
)
def test_advice_is_what_to_type_in_a_shell(
    run: Run, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRAZIL_URI", str(lake))
    (tmp_path / "rows.jsonl").write_text('{"id": 9, "colour": "blue"}\n')
    answer = run(*arguments)
    assert said in answer.err
    assert not re.search(r"lake\.|=True|\w=\[", answer.err)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            errors.CommitUnknown("x", advice="Repeat the call with commit_id='a-1': if the write landed it is found"),
            "--commit-id 'a-1'",
        ),
        (errors.InvalidInput("x", advice="Choose one: name='prod'"), "--name 'prod'"),
        (errors.PermissionDenied("x", advice="Check the token or the keys in properties="), "in --property"),
    ],
)
def test_options_are_named_as_the_command_has_them(error: errors.FrazilError, said: str) -> None:
    assert said in explain(error)


def test_an_unexpected_exception_is_a_sentence_and_a_hint(
    run: Run, monkeypatch: pytest.MonkeyPatch, lake: Path
) -> None:
    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the flux at postgresql://etl:hunter2@db/lake")

    monkeypatch.setattr(frazil, "connect", explode)
    answer = run("tables", "--uri", lake)
    assert answer.code == 70
    assert "ZeroDivisionError" in answer.err
    assert "FRAZIL_DEBUG=1" in answer.err
    assert "Traceback" not in answer.err
    assert "hunter2" not in answer.err
    monkeypatch.setenv("FRAZIL_DEBUG", "1")
    shown = run("tables", "--uri", lake).err
    assert "Traceback" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConflictError("x"), 1),
        (errors.RetriesExhausted("x"), 1),
        (errors.InvalidInput("x"), 2),
        (errors.SchemaMismatch("x"), 2),
        (errors.TableExists("x"), 2),
        (errors.Unsupported("x"), 2),
        (errors.NoSuchTable("x"), 3),
        (errors.NoSuchNamespace("x"), 3),
        (errors.CatalogUnavailable("x"), 4),
        (errors.PermissionDenied("x"), 4),
        (errors.StorageError("x"), 4),
        (errors.CorruptMetadata("x"), 4),
        (errors.CommitUnknown("x"), 5),
        (ValueError("x"), 70),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes_follow_the_class(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach postgresql://etl:hunter2@db:5432/lake",
        "bad conninfo: host=db password=hunter2 dbname=lake",
        "bad conninfo: password='hunter2 hunter2'",
        "https://catalog/v1?token=hunter2&x=1",
        "s3.secret-access-key=hunter2",
        '{"client_secret": "hunter2"}',
    ],
)
def test_secrets_in_texts_of_others_are_masked(text: str) -> None:
    assert "hunter2" not in masked(text)
    assert "hunter2" not in explain(RuntimeError(text))


def test_masking_leaves_ordinary_words_alone() -> None:
    text = "There is no table shop.events. lake.tables() lists those that exist, see https://example.org/a:b"
    assert masked(text) == text


def test_secrets_given_as_options_do_not_come_back(run: Run) -> None:
    for arguments in (
        ["tables", "--uri", "postgresql://etl:hunter2@127.0.0.1:1/lake"],
        ["tables", "--uri", "http://127.0.0.1:1", "--property", "token=hunter2"],
        ["tables", "--uri", "memory://", "--property", "hunter2"],
    ):
        answer = run(*arguments)
        assert answer.code in (2, 4), answer.err
        assert "hunter2" not in answer.out + answer.err


def test_properties_that_sound_like_secrets_are_hidden(run: Run, tmp_path: Path) -> None:
    uri = tmp_path / "lake"
    arguments = [
        "create",
        "t.t",
        "id bigint",
        "--table-property",
        "my.password=hunter2",
        "--table-property",
        "owner=me",
    ]
    made = run(*arguments, "--uri", uri, "--output", "json")
    assert made.json["properties"]["my.password"] == "***"
    assert made.json["properties"]["owner"] == "me"
    assert "hunter2" not in run("show", "t.t", "--uri", uri).out


def test_unknown_verbs_and_options_are_usage_errors(run: Run) -> None:
    assert run("tabels").code == 2
    assert run("tables", "--ouptut", "json").code == 2
    assert run("tables", "--output", "yaml").code == 2


def test_the_version_is_printed_as_programs_do(run: Run) -> None:
    assert run("--version").out == f"frazil {frazil.__version__}\n"


def test_help_keeps_what_looks_like_markup(run: Run) -> None:
    assert "frazil[verify]" in run("lab", "backoff", "--help").out


def test_help_names_every_verb_and_the_exit_codes(run: Run) -> None:
    text = run("--help").out
    for verb in (
        "tables",
        "show",
        "history",
        "files",
        "head",
        "append",
        "create",
        "create-namespace",
        "doctor",
        "lab",
        "demo",
        "version",
    ):
        assert re.search(rf"\b{verb}\b", text)
    assert "Exit codes" in text


# Pieces


def test_plain_values_are_json() -> None:
    values = {
        "when": dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC),
        "bytes": b"\x00\xff",
        "price": decimal.Decimal("1.50"),
        "id": uuid.UUID(int=1),
        "pairs": [("k", dt.date(2026, 1, 2))],
    }
    assert out.plain(values) == {
        "when": "2026-11-01T12:00:00+00:00",
        "bytes": "00ff",
        "price": "1.50",
        "id": "00000000-0000-0000-0000-000000000001",
        "pairs": [["k", "2026-01-02"]],
    }


def test_control_characters_cannot_steer_a_terminal() -> None:
    assert "\x1b" not in out.printable("\x1b[2J boo")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.parquet", "parquet"), ("a.CSV", "csv"), ("a.csv.gz", "csv"), ("x.y.ndjson", "json"), ("a.feather", "arrow")],
)
def test_a_suffix_says_the_format(name: str, kind: str) -> None:
    assert format_of(Path(name), None) == kind


def test_a_name_without_a_known_suffix_asks_for_the_format() -> None:
    with pytest.raises(InvalidInput, match="--format"):
        format_of(Path("rows"), None)
    assert format_of(Path("rows"), RowFormat.CSV) is RowFormat.CSV


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/data/lake", "sqlite:////data/lake/catalog.db"),
        ("sqlite:////data/c.db", "sqlite:////data/c.db"),
        ("postgresql://etl:***@db/lake", "postgresql+psycopg://etl@db/lake"),
        ("https://catalog:8181", 'type="rest", uri="https://catalog:8181"'),
        ("pyiceberg:prod", 'load_catalog("prod")'),
    ],
)
def test_snippets_name_the_catalog_as_others_do(uri: str, expected: str) -> None:
    assert expected in snippets(uri, "frazil", "/data/lake/warehouse", Ident(("shop",), "events"))["pyiceberg"]


def test_the_lines_for_pyiceberg_open_a_table_on_postgres(
    postgres_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Passwords are not printed; libpq takes them from the environment.
    monkeypatch.setenv("PGPASSWORD", urlsplit(postgres_uri).password or "")
    with frazil.connect(postgres_uri, warehouse=str(tmp_path)) as lake:
        lake.create_namespace("shop")
        location = lake.create_table("shop.events", "id bigint").location
    with frazil.connect(postgres_uri) as lake:
        lines = snippets(lake.uri, lake.catalog.name, lake.warehouse, Ident(("shop",), "events"), location)
    found: dict[str, Any] = {}
    exec(lines["pyiceberg"], found)
    assert found["table"].location() == location
    found["table"].catalog.close()


def test_the_lines_for_java_name_a_warehouse_and_the_user() -> None:
    place = "s3://bucket/shop/events-1"
    found = snippets("postgresql://etl:***@db/lake", "frazil", None, Ident(("shop",), "events"), place)["java"]
    assert '"warehouse", "s3://bucket/shop"' in found
    assert '"jdbc.user", "etl"' in found


def test_nobody_else_can_open_a_lake_in_memory() -> None:
    assert snippets("memory://", "frazil", None, Ident(("shop",), "events")) == {}


# Doctor and lab


def test_the_lab_prints_figures_and_draws_a_picture(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "lab.svg"
    answer = run("lab", "backoff", "--writers", 3, "--commits", 30, "--plot", picture, "--output", "json")
    assert answer.code == 0, answer.err
    assert {row["policy"] for row in answer.json["rows"]} == {"linear", "exponential", "jitter"}
    assert picture.stat().st_size > 0
    text = run("lab", "backoff", "--writers", 3, "--commits", 30, "--no-plot").out
    assert "jitter" in text
    assert "8 or more" in text
    assert "published 35% retried" in text


def test_the_doctor_of_a_lake_that_is_not_there_creates_nothing(run: Run, tmp_path: Path) -> None:
    assert run("doctor", tmp_path / "lkae").code == 2
    assert not (tmp_path / "lkae").exists()


def test_the_doctor_finds_nothing_wrong_with_sqlite(run: Run, lake: Path) -> None:
    answer = run("doctor", lake, "--rounds", 2, "--processes", 2, "--stall", 0.1, "--output", "json")
    assert answer.code == 0, answer.err
    assert answer.json["verdict"] == "no violation in 2 rounds"
    assert run("tables", "--uri", lake).out == "shop.events\n"


def test_what_the_doctor_finds_sets_the_exit_code(run: Run, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Finding("violation", "Two writers won one race", "snapshots 1 and 2", "Use another catalog")
    report = Report("/lake", 2, 2, 1.0, (found,))
    monkeypatch.setattr("frazil.verify.doctor.examine", lambda *_, **__: report)
    answer = run("doctor", lake)
    assert answer.code == 1
    assert "not atomic" in answer.out
    assert "Two writers won one race" in answer.out


# Conflicts


@pytest.fixture
def contested(lake: Path) -> Path:
    """A delete that lost to an append of another application, and then landed."""
    with frazil.connect(str(lake), app="ingest") as ours, frazil.connect(str(lake), app="nightly [red]") as theirs:
        events, nightly = ours.table("shop.events"), theirs.table("shop.events")

        def add(phase: Phase, attempt: int) -> None:
            if phase is Phase.HEAD_READ and attempt == 1:
                events.append([{"id": 1, "name": "secret"}])

        with pytest.raises(frazil.ConflictError):
            nightly.delete("id = 1", on_phase=add, commit_id="d-1", on_conflict="abort")
        nightly.delete("id = 1")
    return lake


def test_conflicts_says_what_happened_in_other_processes(run: Run, contested: Path) -> None:
    (found,) = run("conflicts", "shop.events", "--uri", contested, "--output", "json").json
    history = run("history", "shop.events", "--uri", contested, "--output", "json").json
    winner = history[1]["summary"]["frazil.commit-id"]
    assert (found["app"], found["verb"], found["outcome"], found["commit_id"]) == (
        "nightly [red]",
        "delete",
        "conflict",
        "d-1",
    )
    assert (found["attempts"], found["lost"], found["faults"], found["redone"]) == (2, 1, 0, 0)
    assert found["check"] == "no added rows match my filter"
    assert found["winner"] == {"app": "ingest", "verb": "append", "commit_id": winner}
    assert found["advice"].startswith("Retry")
    assert dt.datetime.fromisoformat(found["at"]).tzinfo is not None
    shown = run("conflicts", "shop.events", "--uri", contested).out
    for text in ("nightly [red]", "conflict", "append by ingest", found["advice"]):
        assert text in shown
    assert "secret" not in shown


def test_history_shows_applications_and_verbs(run: Run, contested: Path) -> None:
    found = run("history", "shop.events", "--uri", contested, "--output", "json").json
    assert [(each["app"], each["verb"]) for each in found[:2]] == [("nightly [red]", "delete"), ("ingest", "append")]
    assert all(each["host"] for each in found)
    shown = run("history", "shop.events", "--uri", contested).out
    assert "nightly [red]" in shown
    assert "delete" in shown


def test_a_table_without_conflicts_says_so(run: Run, lake: Path) -> None:
    assert run("conflicts", "shop.events", "--uri", lake, "--output", "json").json == []
    assert "has met other writers" in run("conflicts", "shop.events", "--uri", lake).out


def test_a_catalog_without_a_log_says_so(run: Run, lake: Path) -> None:
    with sqlite3.connect(lake / "catalog.db") as connection:
        connection.execute("DROP TABLE frazil_attempts")
    answer = run("conflicts", "shop.events", "--uri", lake)
    assert answer.code == 2
    assert "keeps no log of conflicts" in answer.err


# Services


@pytest.fixture
def served(lake: Path) -> Path:
    """A lake with a table whose small files are due."""
    with frazil.connect(str(lake)) as opened:
        table = opened.table("shop.events")
        for key in range(3):
            table.append([{"id": 1, "name": f"again {key}"}])
        table.set_properties({"frazil.services.mode": "service", "frazil.services.small-files": "4"})
    return lake


def test_services_run_once_and_the_timeline_says_so(run: Run, served: Path) -> None:
    assert "No service has run" in run("timeline", "shop.events", "--uri", served).out
    (done,) = run("services", "run", served, "--once", "--output", "json").json
    assert (done["table"], done["service"], done["state"]) == ("shop.events", "compact", "completed")
    assert run("services", "run", served, "--once").out == "0 services ran.\n"
    (entry,) = run("timeline", "shop.events", "--uri", served, "--output", "json").json
    assert (entry["service"], entry["state"], entry["outcome"]["files_removed"]) == ("compact", "completed", 4)
    assert entry["requested"] <= entry["started"] <= entry["completed"]
    shown = run("timeline", "shop.events", "--uri", served).out
    assert "compact" in shown
    assert "4 small files" in shown


def test_services_that_failed_are_an_exit_code(run: Run, served: Path) -> None:
    with frazil.connect(str(served)) as opened:
        opened.table("shop.events").set_properties({"frazil.arrow.max-bytes": "1"})
    answer = run("services", "run", "--uri", served, "--once", "--table", "shop.events")
    assert answer.code == 1
    assert "failed: compact() would read" in answer.out


def test_advise_prints_the_health_and_what_is_due(run: Run, served: Path) -> None:
    found = run("advise", "shop.events", "--uri", served, "--output", "json").json
    assert (found["mode"], found["health"]["small_files"]) == ("service", 4)
    assert [each["service"] for each in found["savings"] if each["is_due"]] == ["compact"]
    shown = run("advise", "shop.events", "--uri", served).out
    assert "3 files fewer" in shown
    missing = [each for each in found["savings"] if not each["is_available"]]
    assert ("not in this version" in shown) is bool(missing)


@pytest.fixture
def scattered(tmp_path: Path) -> Path:
    with frazil.connect(str(tmp_path / "scattered")) as lake:
        lake.create_namespace("shop")
        table = lake.create_table("shop.t", "id bigint not null, v bigint", keys=["id"])
        for first in (0, 10):
            table.append([{"id": each, "v": each} for each in range(first, first + 10)])
    return tmp_path / "scattered"


def test_compact_prints_its_plan_and_what_it_did(run: Run, scattered: Path) -> None:
    planned = run("compact", "shop.t", "--uri", scattered, "--dry-run")
    assert (planned.code, planned.out.count("2 files")) == (0, 1)
    assert run("compact", "shop.t", "--uri", scattered, "--dry-run", "--output", "json").json["files"] == 2
    assert run("compact", "shop.t", "--uri", scattered).out == "2 files became 1 file\n"
    assert run("compact", "shop.t", "--uri", scattered).out == "Nothing was left to do\n"
    refused = run("compact", "shop.t", "--uri", scattered, "--option", "min-input-file=2")
    assert (refused.code, "min-input-files" in refused.err) == (2, True)


def test_cluster_sorts_along_a_curve(run: Run, scattered: Path) -> None:
    done = run("cluster", "shop.t", "--by", "v", "--by", "id", "--uri", scattered, "--output", "json")
    assert (done.code, done.json["files_removed"], done.json["files_added"]) == (0, 2, 1)
    assert run("cluster", "shop.t", "--by", "v desc", "--strategy", "sort", "--uri", scattered).code == 0
    assert run("cluster", "shop.t", "--by", "nope", "--uri", scattered).code == 2


def test_doctor_examines_a_table(run: Run, scattered: Path) -> None:
    well = run("doctor", "shop.t", "--uri", scattered)
    assert (well.code, "no delete was dropped" in well.out) == (0, True)
    assert run("doctor", "shop.t", "--uri", scattered, "--output", "json").json == []
    assert run("doctor", "shop.nope", "--uri", scattered).code == 3
    with frazil.connect(str(scattered)) as lake:
        table = lake.table("shop.t")
        table.upsert([{"id": 3, "v": 30}], mode="equality")
        foreign_rewrite(table, age=1)
    ill = run("doctor", "shop.t", "--uri", scattered)
    assert (ill.code, "by spark dropped a delete that still applies to 1 row of main" in ill.out) == (1, True)
