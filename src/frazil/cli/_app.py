"""The verbs of the command ``frazil``."""

from __future__ import annotations

import datetime as dt
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from frazil.cli import _output as out
from frazil.cli import _verification as verification
from frazil.cli._check import Wanted
from frazil.cli._errors import report
from frazil.cli._formats import RowFormat
from frazil.cli._stdout import guarded_stdout
from frazil.cli._target import Format, Name, Properties, Target, Uri, Warehouse, pairs, target_of, verb

_EPILOG = (
    "Exit codes: 0 done, 1 conflict, or the doctor found something, 2 bad input, 3 not found, "
    "4 catalog or storage unavailable, 5 commit outcome unknown."
)

app = typer.Typer(
    name="frazil",
    help="Many writers, one Apache Iceberg table.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
lab = typer.Typer(help="Experiments with retry policies.", no_args_is_help=True)
app.add_typer(lab, name="lab")
services = typer.Typer(help="Services that keep tables healthy beside their writers.", no_args_is_help=True)
app.add_typer(services, name="services")

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="As in shop.events.")]


def _print_version(asked: bool) -> None:
    if asked:
        out.print_text(f"frazil {metadata.version('frazil')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    uri: Uri = None,
    warehouse: Warehouse = None,
    name: Name = None,
    property: Properties = None,  # noqa: A002 - the option is called --property
    output: Format = None,
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Many writers, one Apache Iceberg table."""
    ctx.obj = target_of({"uri": uri, "warehouse": warehouse, "name": name, "property": property, "output": output})


@app.command()
@verb
def tables(
    target: Target,
    namespace: Annotated[str | None, typer.Argument(help="Only the tables of this namespace.")] = None,
) -> None:
    """List the tables."""
    with target.connect(read_only=True) as lake:
        found = [str(each) for each in lake.tables(namespace)]
    if target.json:
        out.print_json([{"table": each} for each in found])
    elif found:
        out.print_text("\n".join(map(out.printable, found)))


@app.command()
@verb
def show(target: Target, table: TableName) -> None:
    """Schema, partitioning, properties, location and head of a table, and how to open it elsewhere."""
    from frazil.cli import _describe as describe

    with target.connect(read_only=True) as lake:
        facts = describe.table_facts(lake, table)
    if target.json:
        out.print_json(facts)
    else:
        describe.print_table(facts)


@app.command()
@verb
def history(
    target: Target,
    table: Annotated[str, typer.Argument(metavar="[TABLE]", help="As in shop.events; without it all tables.")] = "",
    limit: Annotated[int, typer.Option("-n", "--limit", min=0, help="Only the newest N; 0 for all.")] = 20,
    branch: Annotated[str, typer.Option("--branch", help="Whose history.")] = "main",
) -> None:
    """The snapshots of a branch, newest first; without a table the commits of all tables."""
    from frazil.cli import _describe as describe

    with target.connect(read_only=True) as lake:
        found = describe.history(lake, table, branch, limit) if table else describe.lake_history(lake, limit)
    if target.json:
        out.print_json(found)
    elif table:
        describe.print_history(found)
    else:
        describe.print_lake_history(found)


@app.command()
@verb
def conflicts(
    target: Target,
    table: TableName,
    limit: Annotated[int, typer.Option("-n", "--limit", min=0, help="Only the newest N; 0 for all.")] = 20,
) -> None:
    """Commits of all processes that conflicted, lost races, met faults or failed, newest first."""
    from frazil.cli import _conflicts

    with target.connect(read_only=True) as lake:
        found = _conflicts.conflicts(lake, table, limit)
    if target.json:
        out.print_json(found)
    else:
        _conflicts.print_conflicts(found)


@app.command()
@verb
def timeline(
    target: Target,
    table: TableName,
    limit: Annotated[int, typer.Option("-n", "--limit", min=0, help="Only the newest N; 0 for all.")] = 20,
) -> None:
    """What services did to a table and are doing, of all processes, newest first."""
    from frazil.cli import _services

    with target.connect(read_only=True) as lake:
        found = _services.timeline(lake, table, limit)
    if target.json:
        out.print_json(found)
    else:
        _services.print_timeline(found)


@app.command()
@verb
def advise(target: Target, table: TableName) -> None:
    """The health of a table, and what each service would save. Changes nothing."""
    from frazil.cli import _services

    with target.connect(read_only=True) as lake:
        found = lake.table(table).advise()
    if target.json:
        out.print_json(found.to_dict())
    else:
        _services.print_advice(found)


@services.command("run")
@verb
def run_services(
    target: Target,
    place: Annotated[str | None, typer.Argument(metavar="URI", help="The lake; otherwise --uri or FRAZIL_URI.")] = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="Only this table, whatever its mode; repeatable. Else those of mode service."),
    ] = None,
    interval: Annotated[float, typer.Option("--interval", min=0.01, help="Seconds between two rounds.")] = 60.0,
    once: Annotated[bool, typer.Option("--once", help="One round, then exit.")] = False,
) -> int:
    """Run the services that are due on many tables. SIGTERM ends it after what it is committing."""
    from frazil.cli._services import run

    return run(target, place, _names(table), interval, once=once)


@app.command()
@verb
def files(target: Target, table: TableName) -> None:
    """The live data files of a table."""
    from frazil.cli import _describe as describe

    with target.connect(read_only=True) as lake:
        found = describe.files(lake.table(table))
    if target.json:
        out.print_json(found)
    else:
        describe.print_files(found)


@app.command()
@verb
def head(
    target: Target,
    table: TableName,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Number of rows.")] = 10,
    where: Annotated[str | None, typer.Option("--where", help='A Spark SQL condition, as in "id > 7".')] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Names, separated by commas.")] = None,
    ref: Annotated[str | None, typer.Option("--ref", help="A branch or tag.")] = None,
    snapshot: Annotated[int | None, typer.Option("--snapshot", help="A snapshot id.")] = None,
) -> None:
    """Some rows of a table."""
    names = [each.strip() for each in columns.split(",") if each.strip()] if columns else None
    with target.connect(read_only=True) as lake:
        scan = lake.table(table).scan(where=where, columns=names, ref=ref, snapshot=snapshot, limit=limit)
        rows = scan.to_arrow()
    found = out.python_rows(rows)
    if target.json:
        out.print_json(found)
    else:
        out.print_grid(rows.column_names, (list(row.values()) for row in found))


@app.command()
@verb
def append(
    target: Target,
    table: TableName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet, CSV, JSON lines or Arrow IPC.")],
    format: Annotated[  # noqa: A002 - the option is called --format
        RowFormat | None, typer.Option("--format", help="The file's format, if its name does not tell.")
    ] = None,
    merge_schema: Annotated[bool, typer.Option("--merge-schema", help="Add columns the table does not have.")] = False,
    commit_id: Annotated[
        str | None, typer.Option("--commit-id", help="Makes the append idempotent: an id is applied once.")
    ] = None,
    branch: Annotated[str, typer.Option("--branch", help="The branch to append to.")] = "main",
) -> None:
    """Append a file's rows to a table."""
    from frazil.cli import _describe as describe
    from frazil.cli._rows import open_rows

    with target.connect() as lake:
        handle = lake.table(table)
        with open_rows(file, format, handle.schema) as rows:
            commit = handle.append(rows, merge_schema=merge_schema, commit_id=commit_id, branch=branch)
    if target.json:
        out.print_json(describe.commit_facts(commit))
    else:
        out.print_text(describe.commit_sentence(commit, table))


@app.command()
@verb
def expire(
    target: Target,
    table: TableName,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="An age such as 7d, or a moment with a time zone.")
    ] = None,
    retain_last: Annotated[
        int | None, typer.Option("--retain-last", min=1, help="Keep so many snapshots of every branch.")
    ] = None,
    keep_files: Annotated[bool, typer.Option("--keep-files", help="Delete no file.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would expire.")] = False,
) -> None:
    """Expire old snapshots, and delete the files that nothing needs any more."""
    from frazil.cli import _upkeep as upkeep

    with target.connect(read_only=dry_run) as lake:
        limit = None if older_than is None else upkeep.moment_ms(older_than, lake.runtime.now_ms(), "--older-than")
        done = lake.table(table).expire_snapshots(limit, retain_last, delete_files=not keep_files, dry_run=dry_run)
    if target.json:
        out.print_json(upkeep.expiry_facts(done))
    else:
        out.print_text(upkeep.expiry_sentence(done, table, dry_run=dry_run))


@app.command()
@verb
def orphans(
    target: Target,
    table: TableName,
    older_than: Annotated[str, typer.Option("--older-than", help="An age such as 3d or 12h.")] = "3d",
    remove: Annotated[bool, typer.Option("--remove", help="Delete them.")] = False,
    location: Annotated[str | None, typer.Option("--location", help="Only below this folder of the table.")] = None,
) -> None:
    """Find files of a table that nothing names, such as leftovers of killed jobs."""
    from frazil.cli import _upkeep as upkeep

    age = dt.timedelta(milliseconds=upkeep.age_ms(older_than, "--older-than"))
    with target.connect(read_only=not remove) as lake:
        report = lake.table(table).remove_orphans(age, dry_run=not remove, location=location)
    if target.json:
        out.print_json(report.to_dict())
    else:
        out.print_text(upkeep.orphans_sentence(report, table))


@app.command()
@verb
def vacuum(
    target: Target,
    table: TableName,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="The age at which snapshots expire; the table's properties.")
    ] = None,
    orphans_older_than: Annotated[
        str, typer.Option("--orphans-older-than", help="The age at which files that nothing names go.")
    ] = "3d",
) -> None:
    """Expire snapshots with their files, and remove orphans."""
    from frazil.cli import _upkeep as upkeep

    age = dt.timedelta(milliseconds=upkeep.age_ms(orphans_older_than, "--orphans-older-than"))
    with target.connect() as lake:
        limit = None if older_than is None else upkeep.moment_ms(older_than, lake.runtime.now_ms(), "--older-than")
        handle = lake.table(table)
        done = handle.expire_snapshots(limit)
        report = handle.remove_orphans(age, dry_run=False)
    if target.json:
        out.print_json({"expired": upkeep.expiry_facts(done), "orphans": report.to_dict()})
    else:
        out.print_text(upkeep.expiry_sentence(done, table, dry_run=False))
        out.print_text(upkeep.orphans_sentence(report, table))


@app.command()
@verb
def erase(
    target: Target,
    table: TableName,
    where: Annotated[str, typer.Option("--where", help='The rows, as in "email = :email".')],
    param: Annotated[
        list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="The text of :NAME; repeatable.")
    ] = None,
    drop_tags: Annotated[bool, typer.Option("--drop-tags", help="Drop tags that keep such rows.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Nothing brings the rows back.")] = False,
) -> int:
    """Forget rows for good: delete them from every file and snapshot, then search what remains for them."""
    from frazil.errors import InvalidInput

    if not yes:
        raise InvalidInput("Nothing was erased: --yes is missing", advice="Add it. Nothing brings erased rows back")
    with target.connect() as lake:
        report = lake.table(table).erase(where, pairs(param, "--param") if param else None, drop_tags=drop_tags)
    if target.json:
        out.print_json(report.to_dict())
    else:
        out.print_text(str(report))
    return 0 if report.proven else 1


@app.command()
@verb
def create(
    target: Target,
    table: TableName,
    ddl: Annotated[str, typer.Argument(metavar="DDL", help='Columns, as in "id bigint not null, ts timestamp".')],
    partition_by: Annotated[
        list[str] | None, typer.Option("--partition-by", help='As in "day(ts)"; repeatable.')
    ] = None,
    sort_by: Annotated[list[str] | None, typer.Option("--sort-by", help='As in "ts desc"; repeatable.')] = None,
    keys: Annotated[list[str] | None, typer.Option("--keys", help="Columns that identify a row; repeatable.")] = None,
    table_property: Annotated[
        list[str] | None, typer.Option("--table-property", metavar="KEY=VALUE", help="Repeatable.")
    ] = None,
    location: Annotated[str | None, typer.Option("--location", help="The folder of the table's files.")] = None,
    comment: Annotated[str | None, typer.Option("--comment", help="What the table is for.")] = None,
    exists_ok: Annotated[bool, typer.Option("--exists-ok", help="Do nothing if the table exists.")] = False,
) -> None:
    """Create a table, and its namespace and the embedded lake if they do not exist."""
    from frazil.cli import _describe as describe
    from frazil.format.partitions import parse_partitioning, parse_sort
    from frazil.format.schemas import to_schema
    from frazil.model import Ident

    namespace, properties = Ident.parse(table).namespace, pairs(table_property or [], "--table-property")
    # Before the lake is created: a typo must leave nothing behind.
    schema = to_schema(ddl, keys=_names(keys))
    parse_partitioning(partition_by or [], schema)
    parse_sort(sort_by or [], schema)
    with target.connect(create=True) as lake:
        lake.create_namespace(namespace, exists_ok=True)
        lake.create_table(
            table,
            ddl,
            partition_by=partition_by or [],
            sort_by=sort_by or [],
            keys=_names(keys),
            properties=properties,
            location=location,
            comment=comment,
            exists_ok=exists_ok,
        )
        facts = describe.table_facts(lake, table)
    if target.json:
        out.print_json(facts)
    else:
        out.print_text(f"Created {facts['table']} at {facts['location']}")


@app.command("create-namespace")
@verb
def create_namespace(
    target: Target,
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE", help="As in shop, or shop.eu.")],
    exists_ok: Annotated[bool, typer.Option("--exists-ok", help="Do nothing if the namespace exists.")] = False,
) -> None:
    """Create a namespace in an existing lake. The verb "create" creates the namespace of its table."""
    with target.connect() as lake:
        lake.create_namespace(namespace, exists_ok=exists_ok)
    if target.json:
        out.print_json({"namespace": namespace})
    else:
        out.print_text(f"The namespace {out.printable(namespace)} exists")


@app.command()
@verb
def compact(
    target: Target,
    table: TableName,
    where: Annotated[str | None, typer.Option("--where", help="Only files that may hold such rows.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", help="KEY=VALUE, as in Iceberg; repeatable.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and write nothing.")] = False,
) -> None:
    """Put small files of a table together, and leave deleted rows out."""
    from frazil.cli import _rewrite

    with target.connect() as lake:
        _rewrite.run(target, lake.table(table), where, option or [], dry_run=dry_run)


@app.command()
@verb
def cluster(
    target: Target,
    table: TableName,
    by: Annotated[list[str], typer.Option("--by", help='A column, or a term as in "ts desc"; repeatable.')],
    strategy: Annotated[str, typer.Option("--strategy", help="hilbert, zorder or sort.")] = "hilbert",
    where: Annotated[str | None, typer.Option("--where", help="Only files that may hold such rows.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", help="KEY=VALUE, as in Iceberg; repeatable.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and write nothing.")] = False,
) -> None:
    """Sort the rows of a table, so that filters read fewer files."""
    from frazil.cli import _rewrite

    with target.connect() as lake:
        _rewrite.run(target, lake.table(table), where, option or [], dry_run=dry_run, strategy=strategy, by=by)


@app.command()
@verb
def doctor(
    target: Target,
    place: Annotated[
        str | None,
        typer.Argument(metavar="URI|TABLE", help="The catalog, otherwise --uri or FRAZIL_URI; or a table of it."),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of races.")] = 50,
    processes: Annotated[int, typer.Option("--processes", min=2, help="Number of processes.")] = 8,
    stall: Annotated[float, typer.Option("--stall", min=0, help="How long a request is delayed, in seconds.")] = 2.0,
    create: Annotated[bool, typer.Option("--create", help="Create the catalog if it does not exist.")] = False,
) -> int:
    """Race real processes on a catalog and report whether its swap is atomic. Uses a namespace of its own.

    With a table: name deletes that another engine's rewrite dropped although they still apply.
    """
    from frazil.cli._doctor import names_table, run, run_on_table

    if place is not None and names_table(target, place):
        return run_on_table(target, place)
    return run(target, place, rounds, processes, stall, create)


@lab.command()
@verb
def backoff(
    target: Target,
    writers: Annotated[int, typer.Option("--writers", min=2, help="Number of writers.")] = 30,
    commits: Annotated[int | None, typer.Option("--commits", min=1, help="Commits per policy, of all writers.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the virtual clock's randomness.")] = 1,
    real: Annotated[bool, typer.Option("--real", help="Use real processes on SQLite.")] = False,
    plot: Annotated[
        Path, typer.Option("--plot", help="The file of the picture (needs frazil\\[verify]).")
    ] = verification.PLOT,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="No picture.")] = False,
) -> None:
    """Compare linear, exponential and jittered backoff between many writers."""
    picture = None if no_plot else plot
    verification.backoff(verification.Backoff(writers, commits, seed, real, picture, json=target.json))


@app.command()
@verb
def demo(
    target: Target,
    folder: Annotated[Path, typer.Option("--folder", help="The folder of the lake.")] = Path("demo-lake"),
    seconds: Annotated[float, typer.Option("--seconds", min=5, help="How long the jobs write.")] = 60,
    streams: Annotated[int, typer.Option("--streams", min=1, help="Number of streaming queries.")] = 2,
) -> int:
    """Run a pipeline of PySpark jobs on one table (streams, appends, deletes, merges, compaction) and check it."""
    from frazil.cli._fleet import Demo, run

    return run(Demo(folder, seconds, streams), json=target.json)


@app.command()
@verb
def race(
    target: Target,
    folder: Annotated[Path, typer.Option("--folder", help="The folder of the lake.")] = Path("demo-lake"),
    writers: Annotated[int, typer.Option("--writers", min=1, help="Number of processes.")] = 12,
    commits: Annotated[int, typer.Option("--commits", min=1, help="Appends of each process.")] = 20,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows of each append.")] = 100,
) -> int:
    """Race writer processes on one table and prove that nothing was lost."""
    from frazil.cli._race import Plan, run

    return run(Plan(folder, writers, commits, rows), json=target.json)


@app.command()
@verb
def simulate(
    target: Target,
    seed: Annotated[int, typer.Option("--seed", help="The first seed; a seed determines the whole run.")] = 0,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Number of steps in a run.")] = 100,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of runs, with consecutive seeds.")] = 1,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Number of processes that share the runs.")] = 1,
    faults: Annotated[str, typer.Option("--faults", help="all, none, or a comma-separated list.")] = "all",
    actors: Annotated[str, typer.Option("--actors", help="usual, all, bank, or a comma-separated list.")] = "usual",
    catalog: Annotated[str, typer.Option("--catalog", help="database, rest, glue or not-atomic.")] = "database",
    severity: Annotated[float, typer.Option("--severity", min=0, help="Multiplies the rate of faults.")] = 1.0,
    keep: Annotated[Path | None, typer.Option("--keep", help="Shrink failing seeds and save them here.")] = None,
    replay: Annotated[Path | None, typer.Option("--replay", help="Run a saved case.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
) -> int:
    """Run many writers on a virtual clock, with faults, and check the result. The same seed gives the same run."""
    return verification.simulate(
        verification.Simulate(
            seed, steps, seeds, jobs, faults, actors, catalog, severity, keep, replay, json=json or target.json
        )
    )


@app.command()
@verb
def top(
    target: Target,
    place: Annotated[str | None, typer.Argument(metavar="URI", help="The lake; otherwise --uri or FRAZIL_URI.")] = None,
    interval: Annotated[float, typer.Option("--interval", min=0.05, help="Seconds between two samples.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one interval and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The same as --output json; needs --once.")] = False,
) -> None:
    """Watch the commits of all writers by table: rates, groups and queue lengths. Ctrl-C ends it."""
    from frazil.cli._top import run

    run(target, place, interval, once=once, json=json or target.json)


@app.command()
@verb
def check(
    target: Target,
    history: Annotated[Path, typer.Argument(metavar="HISTORY", help="The folder or file that FRAZIL_RECORD wrote.")],
    lake: Annotated[str | None, typer.Option("--lake", metavar="URI", help="The recorded lake.")] = None,
    level: Annotated[Wanted, typer.Option("--level", help="The level to hold.")] = Wanted.STRICT_SERIALIZABLE,
    slack: Annotated[float, typer.Option("--slack", min=0, help="Seconds by which clocks may differ.")] = 0.0,
    json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
) -> int:
    """Check a recorded history: which isolation levels it rules out, and by which anomaly."""
    from frazil.cli._check import Plan, run

    return run(target, Plan(history, lake, level, slack), json=json or target.json)


@app.command()
@verb
def version(target: Target) -> None:
    """The versions of Frazil and its main dependencies."""
    from frazil.cli import _describe as describe

    facts = describe.versions()
    if target.json:
        out.print_json(facts)
    else:
        out.print_facts(list(facts.items()))


def _names(texts: list[str] | None) -> list[str]:
    """Repeated options and commas both work: --keys a --keys b, --keys a,b."""
    return [name.strip() for text in texts or [] for name in text.split(",") if name.strip()]


def run(arguments: list[str] | None) -> None:
    """Run one command and end the process. Prints a traceback only with FRAZIL_DEBUG=1."""
    try:
        with guarded_stdout():
            app(args=arguments, prog_name="frazil")
    except Exception as error:  # noqa: BLE001 - the outermost frame: every error becomes a message and an exit code
        sys.exit(report(error))
