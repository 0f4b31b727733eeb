"""Many writers on one table: Frazil beside Iceberg Java, PyIceberg, delta-rs and DuckLake, each for the same seconds.

Writers are processes (of Iceberg Java: threads of one JVM, each with a catalog of its own) that start together and
commit as fast as they can. Two forms: ``files``, the commit alone, of a data file that is staged; ``rows``, end to end,
ten rows written to a Parquet file and committed. Every run has a fresh database and folder. A commit that fails is
counted and not sent again; retries inside a library are what its defaults say. At the end the system reads its table
back, and a second reader as well where the table is Iceberg's: an acknowledged commit that either does not see is lost.

Commits per second are those acknowledged within the seconds. Frazil fsyncs every file it references before the swap;
PyIceberg and Iceberg Java do not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg.conninfo

from common import RESULTS, Report
from interop import jars
from peers.contend import CATALOG, FILES, PER_COMMIT, PER_WRITER, ROWS, TABLE, Request, system_of
from servers import PostgresServer

HERE = Path(__file__).resolve().parent
WRITERS = (1, 8, 30, 100)
SECONDS = 12.0
FORMS = {FILES: "commit alone", ROWS: "end to end"}
MODULES = {
    "delta-rs": ("deltalake",),
    "ducklake": ("duckdb", "duckdb_extensions"),
    "ducklake-inlined": ("duckdb", "duckdb_extensions"),
}
"""Of the group bench, by the system that needs them."""
WITNESS = {"frazil": "pyiceberg", "iceberg-java": "frazil", "pyiceberg": "frazil"}
"""Who else reads a system's table at the end."""
PATIENCE_S = 1800
"""For all of a run but its seconds; a program that hangs for good must not take the others' figures with it."""
CONNECTIONS = 600
"""A hundred writers of a library that keeps several each must not be stopped by the server."""


@dataclass(frozen=True)
class Side:
    system: str
    database: str = ""

    @property
    def name(self) -> str:
        return f"{self.system}-{self.database}" if self.database else self.system


OURS = (Side("frazil", "postgres"), Side("frazil", "sqlite"))
JAVA = (Side("iceberg-java", "postgres"), Side("iceberg-java", "sqlite"))
PYICEBERG = (Side("pyiceberg", "postgres"), Side("pyiceberg", "sqlite"))
OTHERS = (Side("delta-rs"), Side("ducklake", "postgres"), Side("ducklake-inlined", "postgres"))
SIDES = {side.name: side for side in (*OURS, *JAVA, *PYICEBERG, *OTHERS)}


@dataclass(frozen=True)
class Figures:
    """What came of one side, in one form, with so many writers."""

    side: str
    form: str
    writers: int
    commits_per_s: float
    acknowledged: int
    failed: int
    lost: int
    twice: int
    crashed: int
    p50_ms: float
    p99_ms: float
    problems: dict[str, int]
    """The kinds of failure, and how often each was seen."""

    @property
    def tried(self) -> int:
        return self.acknowledged + self.failed

    def line(self) -> str:
        share = 100 * self.failed / max(1, self.tried)
        text = (
            f"  {self.side:<26} {self.commits_per_s:8.1f} commits/s {share:5.1f} % failed"
            f"   p50 {self.p50_ms:7.1f} ms   p99 {self.p99_ms:7.1f} ms   {self.lost} lost"
        )
        if self.twice:
            text += f", {self.twice} twice"
        if self.crashed:
            text += f", {self.crashed} writers crashed"
        if self.problems:
            text += f"   ({max(self.problems, key=lambda kind: self.problems[kind])})"
        return text


@dataclass
class Contention(Report):
    """A report that keeps every run whole beside the figures that a page shows."""

    runs: dict[tuple[str, str, int], Figures] = field(default_factory=dict)

    def keep(self, found: Figures) -> None:
        self.runs[found.side, found.form, found.writers] = found
        self.figures[f"{many(found.writers)}: {found.form}, {found.side}"] = round(found.commits_per_s, 2)
        print(found.line(), flush=True)

    def peers(self, form: str, writers: int) -> list[Figures]:
        ours = {side.name for side in OURS}
        return [run for (side, *rest), run in self.runs.items() if rest == [form, writers] and side not in ours]

    def save(self) -> None:
        super().save()
        path = RESULTS / f"{self.name}.json"
        body = json.loads(path.read_text())
        body["runs"] = [asdict(run) for run in self.runs.values()]
        path.write_text(json.dumps(body, indent=2) + "\n")


# One run


class Server(PostgresServer):
    """With its durable settings, as in production."""

    def __init__(self) -> None:
        super().__init__(durable=True)

    def start(self) -> None:
        self._options += f" -c max_connections={CONNECTIONS}"
        super().start()


@dataclass
class Bench:
    work: Path
    server: Server
    seconds: float
    classpath: str
    """Of Iceberg Java's program; empty: no side needs it."""
    _made: int = field(default=0)

    def run(self, side: Side, form: str, writers: int) -> Figures:
        self._made += 1
        name = f"run{self._made}"
        folder = self.work / name
        (folder / "warehouse").mkdir(parents=True)
        uri = f"sqlite:///{folder}/catalog.db" if side.database == "sqlite" else ""
        if side.database == "postgres":
            uri = self.server.create_database(name)
        request = Request(side.system, form, uri, str(folder), writers, self.seconds)
        try:
            return figures(side, request, self._answer(request), seen_by_another(request))
        finally:
            if side.database == "postgres":
                self.server.drop_database(name)
            # The folder goes at the end, with all others: a file system that has just lost thousands of files is slow
            # to make new ones (ext4 looks for inodes that were not freed lately), and the next side would pay for it.

    def _answer(self, request: Request) -> dict[str, Any]:
        folder = Path(request.folder)
        if request.system == "iceberg-java":
            body = {**asdict(request), **java_options(request)}
            command = ["java", "-cp", self.classpath, "ContendIceberg", request.folder]
        else:
            body = asdict(request)
            command = [sys.executable, "-m", "peers.contend", request.folder]
        (folder / "request.json").write_text(json.dumps(body))
        patience = self.seconds + PATIENCE_S
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False, timeout=patience)
        if done.returncode or not (folder / "answer.json").exists():
            raise RuntimeError(f"{request.system} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
        return dict(json.loads((folder / "answer.json").read_text()))


def java_options(request: Request) -> dict[str, Any]:
    properties = {"warehouse": f"file://{request.warehouse}", "jdbc.schema-version": "V1"}
    if request.uri.startswith("sqlite:///"):
        properties["uri"] = request.uri.replace("sqlite:///", "jdbc:sqlite:")
    else:
        parts = psycopg.conninfo.conninfo_to_dict(request.uri)
        properties["uri"] = f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}"
        properties |= {"jdbc.user": str(parts["user"]), "jdbc.password": str(parts["password"])}
    return {"properties": properties, "catalog": CATALOG, "table": TABLE, "per_writer": PER_WRITER}


def seen_by_another(request: Request) -> Counter[int] | None:
    """The table as a second reader finds it; None: nobody else reads this format."""
    witness = WITNESS.get(request.system)
    return system_of(replace(request, system=witness)).found() if witness else None


def figures(side: Side, request: Request, answer: dict[str, Any], witness: Counter[int] | None) -> Figures:
    outcomes = answer["outcomes"]
    acknowledged = {commit: ended - began for commit, began, ended, problem in outcomes if problem is None}
    in_time = sum(problem is None and ended <= request.seconds for _, _, ended, problem in outcomes)
    own = Counter({int(commit): times for commit, times in answer["found"].items()})
    readings = [own] if witness is None else [own, witness]
    whole = PER_COMMIT[request.form]
    latencies = sorted(1000 * seconds for seconds in acknowledged.values()) or [0.0]
    problems = Counter(problem.partition(":")[0].rpartition(".")[2] for *_, problem in outcomes if problem is not None)
    return Figures(
        side=side.name,
        form=request.form,
        writers=request.writers,
        commits_per_s=in_time / request.seconds,
        acknowledged=len(acknowledged),
        failed=len(outcomes) - len(acknowledged),
        lost=sum(any(reading[commit] < whole for reading in readings) for commit in acknowledged),
        twice=len({commit for reading in readings for commit, times in reading.items() if times > whole}),
        crashed=answer["crashed"],
        p50_ms=statistics.median(latencies),
        p99_ms=latencies[int(len(latencies) * 0.99)],
        problems=dict(problems),
    )


# What the runs say together


def compare(report: Contention, form: str, writers: int, seconds: float) -> None:
    """How many times each peer's rate Frazil has, on either database."""
    ours = [run for side in OURS if (run := report.runs.get((side.name, form, writers))) is not None]
    for peer in report.peers(form, writers):
        ratios = [f"{run.side} {run.commits_per_s / floor(peer, seconds):8.2f} ×" for run in ours]
        if ratios:
            print(f"    over {peer.side:<26} {'   '.join(ratios)}", flush=True)


def many(writers: int) -> str:
    return "1 writer" if writers == 1 else f"{writers} writers"


def floor(run: Figures, seconds: float) -> float:
    """A rate to divide by: who landed nothing is taken to have landed one commit."""
    return max(run.commits_per_s, 1 / seconds)


def judge(report: Contention, seconds: float) -> None:
    """The ratios that are wanted, as far as the runs for them are there."""
    for database in ("postgres", "sqlite"):
        rates = _Rates(report, f"frazil-{database}", seconds)
        java, pyiceberg = f"iceberg-java-{database}", f"pyiceberg-{database}"
        for peer, wanted in ((java, 3), (pyiceberg, 4)):
            rates.over(FILES, 1, peer, wanted)
        rates.over_best(ROWS, 8, 1.2)
        if database == "postgres":
            for form, best, over_java in ((FILES, 4, 60), (ROWS, 3, 40)):
                rates.over_best(form, 30, best)
                rates.over(form, 30, java, over_java)
                rates.tail(form, 30, 10)
        else:
            rates.over(ROWS, 30, java, 25)
        for form in FORMS:
            rates.growth(form, 30, 100)
            for writers in (30, 100):
                rates.safety(form, writers)


@dataclass(frozen=True)
class _Rates:
    """Frazil on one database beside the others."""

    report: Contention
    ours: str
    seconds: float

    def _run(self, form: str, writers: int, side: str | None = None) -> Figures | None:
        return self.report.runs.get((side or self.ours, form, writers))

    def over(self, form: str, writers: int, peer: str, wanted: float) -> None:
        run, other = self._run(form, writers), self._run(form, writers, peer)
        if run and other:
            key = f"{many(writers)}, {FORMS[form]}: {self.ours} over {peer}"
            self.report.ratio(key, run.commits_per_s, floor(other, self.seconds), wanted=wanted)

    def over_best(self, form: str, writers: int, wanted: float) -> None:
        run, best = self._run(form, writers), self._best(form, writers)
        if run and best:
            key = f"{many(writers)}, {FORMS[form]}: {self.ours} over the best peer"
            self.report.ratio(key, run.commits_per_s, floor(best, self.seconds), wanted=wanted)

    def tail(self, form: str, writers: int, wanted: float) -> None:
        run, best = self._run(form, writers), self._best(form, writers)
        if run and best and run.acknowledged:
            key = f"{many(writers)}, {FORMS[form]}: p99 of the best peer over {self.ours}"
            self.report.ratio(key, run.p99_ms, best.p99_ms, wanted=wanted, higher_is_better=False)

    def growth(self, form: str, few: int, more: int) -> None:
        before, after = self._run(form, few), self._run(form, more)
        if before and after:
            key = f"{FORMS[form]}: {self.ours}, {more} writers over {few}"
            self.report.ratio(key, after.commits_per_s, floor(before, self.seconds), wanted=1)

    def safety(self, form: str, writers: int) -> None:
        run = self._run(form, writers)
        if run:
            key = f"{many(writers)}, {FORMS[form]}: {self.ours}"
            # A writer that crashed did not say what it tried last.
            tried = max(1, run.tried + run.crashed)
            self.report.ratio(f"{key}, acknowledged over tried", run.acknowledged, tried, wanted=1)
            kept = run.acknowledged - run.lost - run.twice
            self.report.ratio(f"{key}, found once over acknowledged", kept, max(1, run.acknowledged), wanted=1)

    def _best(self, form: str, writers: int) -> Figures | None:
        return max(self.report.peers(form, writers), key=lambda run: run.commits_per_s, default=None)


# The picture

# Okabe and Ito's colours: told apart with every kind of colour vision.
COLOURS = {
    "frazil": "#0072B2",
    "iceberg-java": "#D55E00",
    "pyiceberg": "#E69F00",
    "delta-rs": "#009E73",
    "ducklake": "#CC79A7",
    "ducklake-inlined": "#56B4E9",
}


def plot(report: Contention, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    forms = {form: title for form, title in FORMS.items() if any(form == each for _, each, _ in report.runs)}
    if not forms:
        return
    figure = Figure(figsize=(15, 4.5 * len(forms)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("Writers on one table: what is committed, what fails, how long it takes", fontweight="bold")
    axes = figure.subplots(len(forms), 3, squeeze=False)
    for row, (form, title) in zip(axes, forms.items(), strict=True):
        _lines(row[0], report, form, f"Commits per second, {title}", "commits_per_s", log=True)
        _lines(row[1], report, form, f"Failed commits (%), {title}", "failed_percent", log=False)
        _lines(row[2], report, form, f"p99 (ms), {title}", "p99_ms", log=True)
    axes[0][0].legend(frameon=False, fontsize=8, ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(os.fspath(path))
    print(f"Drawn: {path}")


def _lines(axis: Any, report: Contention, form: str, title: str, what: str, *, log: bool) -> None:
    counts = sorted({writers for _, _, writers in report.runs})
    for side in SIDES.values():
        runs = [run for writers in counts if (run := report.runs.get((side.name, form, writers))) is not None]
        values = [
            100 * run.failed / max(1, run.tried) if what == "failed_percent" else float(getattr(run, what))
            for run in runs
        ]
        if log:
            # A logarithm has no place for nothing.
            values = [value or float("nan") for value in values]
        style = {
            "color": COLOURS[side.system],
            "linestyle": "--" if side.database == "sqlite" else "-",
            "marker": "s" if side.database == "sqlite" else "o",
            "linewidth": 2.4 if side.system == "frazil" else 1.5,
        }
        axis.plot([run.writers for run in runs], values, label=side.name, **style)
    axis.set_xscale("log")
    log = log and any(value > 0 for line in axis.get_lines() for value in line.get_ydata())
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.set_xticks([], minor=True)
    axis.set_xlabel("writers")
    if log:
        axis.set_yscale("log")
    elif what == "failed_percent":
        axis.set_ylim(-2, 102)
    axis.set_title(title, fontsize=11)
    axis.grid(alpha=0.25, which="both")


# Starting


def missing(sides: Sequence[Side]) -> list[str]:
    wanted = {module for side in sides for module in MODULES.get(side.system, ())}
    return sorted(module for module in wanted if importlib.util.find_spec(module) is None)


def compiled(folder: Path) -> str:
    """The classpath of Iceberg Java's program, which is compiled now."""
    classes = folder / "classes"
    classpath = os.pathsep.join([str(classes), *map(str, jars.fetched(jars.CATALOG))])
    source = str(HERE / "peers" / "ContendIceberg.java")
    command = ["javac", "-Xlint:all,-processing,-classfile,-path", "-Werror", "-proc:none", "-d", str(classes)]
    subprocess.run([*command, "-cp", classpath, source], check=True)
    return classpath


@contextmanager
def opened(sides: Sequence[Side], arguments: argparse.Namespace) -> Iterator[Bench]:
    logging.disable(logging.CRITICAL)
    work = Path(tempfile.mkdtemp(prefix="frazil-bench-", dir=arguments.folder))
    try:
        classpath = compiled(work) if any(side in JAVA for side in sides) else ""
        server = Server()
        try:
            yield Bench(work, server, arguments.seconds, classpath)
        finally:
            server.close()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def measure(bench: Bench, report: Contention, sides: Sequence[Side], arguments: argparse.Namespace) -> bool:
    """Whether all of them ran; one that could not be run is said, and the others go on."""
    all_ran = True
    for writers in arguments.writers:
        for form in arguments.forms:
            print(f"{many(writers)}, {FORMS[form]}", flush=True)
            for side in sides:
                try:
                    report.keep(bench.run(side, form, writers))
                except Exception as problem:
                    all_ran = False
                    print(f"  {side.name:<26} did not run: {type(problem).__name__}: {problem}", flush=True)
            compare(report, form, writers, arguments.seconds)
    return all_ran


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, nargs="+", default=list(WRITERS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each run")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--only", nargs="+", choices=SIDES, default=list(SIDES), metavar="SIDE", help=", ".join(SIDES))
    parser.add_argument("--plot", type=Path, default=HERE.parent / "build" / "contention.png")
    parser.add_argument("--folder", help="where the tables are made, and removed at the end")
    arguments = parser.parse_args()
    sides = [SIDES[name] for name in arguments.only]
    if lacking := missing(sides):
        sys.exit(
            f"Not installed: {', '.join(lacking)}. Only this benchmark needs them: run `make bench-contention`, or "
            "`uv run --group bench python benchmarks/contention.py`, or choose other sides with --only."
        )
    if any(side in JAVA for side in sides) and not (shutil.which("java") and shutil.which("javac")):
        sys.exit("Iceberg Java needs a JDK 17 or newer on PATH; --only chooses sides without it.")
    report = Contention("contention", {"seconds": arguments.seconds})
    with opened(sides, arguments) as bench:
        all_ran = measure(bench, report, sides, arguments)
    print("What is wanted")
    judge(report, arguments.seconds)
    # A run of some sides, some counts or few seconds is for looking at them.
    ran = (set(arguments.only), set(arguments.writers), set(arguments.forms))
    if all_ran and ran == (set(SIDES), set(WRITERS), set(FORMS)) and arguments.seconds >= SECONDS:
        report.save()
    plot(report, arguments.plot)


if __name__ == "__main__":
    main()
