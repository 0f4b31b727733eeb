"""An actor's session: the tables of its own process, with every call and its outcome recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from frazil.commit.operations import Identity, MetadataChange
from frazil.commit.operations import Write as Staged
from frazil.commit.retry import Retry
from frazil.dml.view import Settings, View
from frazil.errors import CommitUnknown, ConflictError, FrazilError
from frazil.format.metadata import TableMetadata
from frazil.model import Commit
from frazil.runtime import RandomStream, seeded
from frazil.table.call import Statement
from frazil.table.destination import CommitNow
from frazil.table.options import WriteOptions
from frazil.table.source import CurrentTable
from frazil.table.table import Table
from frazil_verification.simulator import steps
from frazil_verification.simulator.lake import TABLE, TABLE_NAME, SimulatedLake
from frazil_verification.simulator.process import Process
from frazil_verification.simulator.records import Attempt, CallOutcome, Read, Write
from frazil_verification.simulator.steps import Row, State, Step

if TYPE_CHECKING:
    from frazil_verification.simulator.world import World

KEYS = 8
PARTITIONS = ("a", "b", "c")
_SECOND_THOUGHTS_S = (0.5, 0.5, 5.0, 40.0)
_RETRIES = (None, None, None, Retry(tries=4, base_ms=20), Retry(total_s=1.0), Retry(fault_tries=0), Retry(tries=1))


@dataclass(frozen=True, slots=True)
class _Observed:
    """Commits at once, and records the commit id and the base snapshots, by which the oracle finds the write."""

    inner: CommitNow
    process: Process
    write: Write
    is_atomic: ClassVar[bool] = True
    """The oracle looks for one commit of each step."""

    @property
    def source(self) -> CurrentTable:
        return self.inner.source

    def accept(self, verb: str, given: WriteOptions) -> WriteOptions:
        return self.inner.accept(verb, given)

    def identify(
        self, commit_id: str | None, verb: str, parameters: Mapping[str, object], metadata: TableMetadata, branch: str
    ) -> tuple[Identity, Commit | None]:
        identity, found = self.inner.identify(commit_id, verb, parameters, metadata, branch)
        if verb == self.write.step.verb:
            self.write.commit_id = identity.commit_id
        return identity, found

    def run(self, statement: Statement) -> Commit:
        def build(view: View, settings: Settings) -> Staged:
            staged = statement.build(view, settings)
            self.write.bases.append(staged.base.snapshot_id)
            # Large writes take long between reading the head and their commit.
            self.process.take(self.process.world.staging_s)
            return staged

        return self.inner.run(replace(statement, build=build))

    def change(
        self,
        change: MetadataChange,
        base: TableMetadata,
        *,
        identity: Identity | None = None,
        retry: Retry | None = None,
        reads: Sequence[Staged] = (),
    ) -> Commit:
        return self.inner.change(change, base, identity=identity, retry=retry, reads=reads)


@dataclass(slots=True)
class Session:
    """The work of one actor in one process. ``draw``: the randomness of its actions, not of faults."""

    name: str
    world: World
    process: Process
    lake: SimulatedLake
    draw: RandomStream
    is_foreign: bool = False
    pending: Write | None = None
    """A write that is repeated under its id if the process dies."""
    calls: int = 0
    number: int = 0
    """The number of the current step."""

    # Draws

    def row(self, **fixed: Any) -> Row:
        drawn: dict[str, Any] = {
            "id": self.draw.randrange(KEYS),
            "p": self.draw.choice(PARTITIONS),
            "v": self.draw.randrange(100),
            "note": f"{self.name}.{self.calls}",
        }
        return {**drawn, **fixed}

    def rows(self, most: int = 5, **fixed: Any) -> tuple[Row, ...]:
        """Mostly rows of one partition, which make one file: files take most of the time."""
        first = self.row(**fixed)
        if self.draw.random() < 0.9:
            group = first["id"] // 4 * 4
            return (
                first,
                *(self.row(**{"p": first["p"], "id": group + n % 4, **fixed}) for n in range(1, self._some(most))),
            )
        return tuple(self.row(**fixed) for _ in range(self._some(most)))

    def _some(self, most: int) -> int:
        return self.draw.randint(1, most)

    def keyed_rows(self, most: int = 3) -> tuple[Row, ...]:
        return tuple({row["id"]: row for row in self.rows(most)}.values())

    def condition(self) -> steps.Condition:
        key, partition = self.draw.randrange(KEYS), self.draw.choice(PARTITIONS)
        options: Sequence[steps.Condition] = (
            (("id", "=", key),),
            (("id", "in", tuple(sorted({key, self.draw.randrange(KEYS)}))),),
            (("p", "=", partition), ("id", "=", key)),
            (("p", "=", partition), ("v", "<", self.draw.randrange(60))),
            (("p", "=", partition),),
            (("id", ">=", key),),
        )
        return self.draw.choice(options)

    def pause(self, seconds: float) -> None:
        self.process.take(seconds)

    # Calls

    def write(self, step: Step) -> Write:
        """Make a call, and repeat it under its commit id if its outcome is unknown."""
        write = self._begun(step)
        options = self._options(write)
        self.pending = write if "commit_id" in options else None
        attempt = self._attempt(write, options)
        self._catch_breath(write)
        while self._is_worth_repeating(write, attempt) and self.draw.random() < 0.7:
            self.pause(self.draw.choice(_SECOND_THOUGHTS_S))
            attempt = self._attempt(write, {**options, "commit_id": write.commit_id})
        self.pending = None
        return write

    def _begun(self, step: Step, *, is_named: bool = False) -> Write:
        """A write, recorded before its first call; ``is_named``: under an id that its caller chose."""
        self.calls += 1
        name = f"{self.name}.{self.calls}"
        write = Write(name, step, self.is_foreign, f"id-{name}" if is_named else "")
        self.world.records.writes.append(write)
        return write

    def _is_worth_repeating(self, write: Write, attempt: Attempt) -> bool:
        """Other engines have no commit ids: their repeated writes may land twice."""
        return not self.is_foreign and attempt.outcome is CallOutcome.UNKNOWN and len(write.attempts) < 4

    def resume(self, write: Write) -> None:
        """After a crash: repeat the interrupted write under the same id."""
        self.pending = write
        self._attempt(write, {**self._place(write), "commit_id": write.commit_id})
        self.pending = None

    def _options(self, write: Write) -> WriteOptions:
        options = self._place(write)
        options["retry"] = self.draw.choice(_RETRIES)
        if self.is_foreign:
            options["snapshot_properties"] = {"simulated.write": write.name}
            options["on_deleted"] = "keep"
            options["on_conflict"] = "abort"
            options["retry"] = Retry(tries=4, base_ms=100)
        elif self.draw.random() < 0.4:
            options["commit_id"] = write.commit_id = f"id-{write.name}"
        return options

    @staticmethod
    def _place(write: Write) -> WriteOptions:
        options: WriteOptions = {"engine": "arrow"}
        if write.step.isolation is not None:
            options["isolation"] = cast("Any", write.step.isolation)
        if write.step.on_conflict is not None:
            options["on_conflict"] = cast("Any", write.step.on_conflict)
        if write.step.branch != "main" and write.step.verb in steps.ROW_VERBS:
            options["branch"] = write.step.branch
        return options

    def transact(self, where: steps.Condition, then: Callable[[State], Step]) -> Write:
        """Read some rows and write depending on them, in one transaction."""
        write = self._begun(Step("transaction"), is_named=True)

        def work() -> Commit:
            with self.lake.transaction(commit_id=write.commit_id) as transaction:
                table = transaction.table(TABLE_NAME)
                rows: State = tuple(table.scan(steps.condition_sql(where), limit=1 << 40).to_arrow().to_pylist())
                write.step, write.seen = then(rows), (where, rows)
                steps.call(table, write.step, {"engine": "arrow"})
                self.pause(self.world.staging_s)
                done = transaction.commit()
                assert isinstance(done, Commit)
                return done

        self._follow(write, work)
        self._catch_breath(write)
        return write

    def stream(self, name: str) -> None:
        """Write the next batch of a stream; its rows are the same for every driver and every repetition."""
        batch = self.world.streams.get(name, 0)
        drawn = seeded(f"{self.world.case.seed}/stream/{name}/{batch}")
        rows = tuple(
            {"id": drawn.randrange(KEYS), "p": drawn.choice(PARTITIONS), "v": batch, "note": f"{name}.{batch}.{n}"}
            for n in range(drawn.randint(1, 3))
        )
        write = self._begun(Step("stream", rows=rows, name=name, value=batch), is_named=True)
        options: WriteOptions = {"engine": "arrow", "commit_id": write.commit_id}
        attempt = self._follow(write, lambda: steps.stream(Table(CommitNow(self.lake, TABLE)), write.step, options))
        if attempt.outcome in (CallOutcome.COMMITTED, CallOutcome.UNCHANGED):
            # Another driver may have written later batches concurrently.
            self.world.streams[name] = max(self.world.streams.get(name, 0), batch + 1)
        self._catch_breath(write)

    def _catch_breath(self, write: Write) -> None:
        if write.outcome is CallOutcome.FAILED:
            # A period in which nothing works must not use up the steps.
            self.pause(0.3)

    def _attempt(self, write: Write, options: WriteOptions) -> Attempt:
        return self._follow(write, lambda: steps.call(self._table(write), write.step, options), options.get("retry"))

    def _table(self, write: Write) -> Table:
        return Table(_Observed(CommitNow(self.lake, TABLE), self.process, write))

    def _follow(self, write: Write, work: Callable[[], Commit | None], retry: Retry | None = None) -> Attempt:
        """Make the call, and record its outcome."""
        has_id = bool(write.commit_id)
        started = self.process.note(f"calls {write.name} {write.step}")
        attempt = Attempt(self.process.name, started, has_id=has_id, retry=retry or Retry())
        write.attempts.append(attempt)
        redone_before = self.process.redone
        try:
            done = work()
        except CommitUnknown as error:
            attempt.error = f"{type(error).__name__}: {error.evidence}"
        except FrazilError as error:
            attempt.outcome, attempt.error = CallOutcome.FAILED, type(error).__name__
            if isinstance(error, ConflictError):
                attempt.checks = frozenset(each.check for each in error.conflicts)
        else:
            attempt.commit = done
            attempt.outcome = CallOutcome.COMMITTED if done is not None and done.changed else CallOutcome.UNCHANGED
        attempt.redone = self.process.redone - redone_before
        last_phase, troubles = self.process.phase
        attempt.undisturbed_since = last_phase if troubles == self.process.troubles else None
        again = ", found already" if attempt.commit is not None and attempt.commit.already_committed else ""
        attempt.finished = self.process.note(f"hears of {write.name}: {attempt.outcome.value} {attempt.error}{again}")
        return attempt

    def read(self, times: int = 2) -> None:
        """Pin a snapshot, and read it several times while other sessions commit."""
        self.calls += 1
        name = f"{self.name}.{self.calls}"
        started = self.process.note(f"reads as {name}")
        try:
            # With a limit, a scan does not read files ahead in other threads.
            scan = Table(CommitNow(self.lake, TABLE)).scan(limit=1 << 40)
        except FrazilError as error:
            self.process.note(f"cannot read: {type(error).__name__}")
            return
        pinned = self.process.note(f"{name} is pinned at {scan.snapshot_id}")
        for _ in range(times):
            try:
                rows: State = tuple(scan.to_arrow().to_pylist())
            except FrazilError as error:
                if _is_lasting(error):
                    self.world.records.problems.append(f"{name} cannot read snapshot {scan.snapshot_id}: {error}")
                return
            self.world.records.reads.append(Read(name, scan.snapshot_id, rows, started, pinned))
            self.pause(0.5)


def _is_lasting(error: FrazilError) -> bool:
    """Whether it is not a transient fault of the simulated disk."""
    return "The simulated" not in f"{error} {error.__cause__}"
