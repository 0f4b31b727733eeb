"""An actor's session: the tables of its own process, with every call and its outcome recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from frazil.commit.operations import Identity, MetadataChange
from frazil.commit.operations import Write as Staged
from frazil.commit.retry import Retry
from frazil.dml.view import Settings, View
from frazil.errors import CommitUnknown, ConflictError, FrazilError
from frazil.format.metadata import TableMetadata
from frazil.model import Commit, Ident, TransactionCommit
from frazil.read.scan import Scan
from frazil.runtime import RandomStream, seeded
from frazil.table.call import Statement
from frazil.table.destination import CommitNow
from frazil.table.options import WriteOptions
from frazil.table.source import CurrentTable
from frazil.table.table import Table
from frazil.transaction import LakeSnapshot, Transaction
from frazil_verification.simulator import steps
from frazil_verification.simulator.lake import TABLE, SimulatedLake
from frazil_verification.simulator.process import Process
from frazil_verification.simulator.records import Attempt, Audit, CallOutcome, JointWrite, Read, Seen, Write
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
    table: Ident = TABLE
    """The table of its calls."""
    pending: Write | JointWrite | None = None
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
        write = Write(name, self.table, step, self.is_foreign, f"id-{name}" if is_named else "")
        self.world.records.writes.append(write)
        return write

    def _is_worth_repeating(self, write: Write, attempt: Attempt) -> bool:
        """Other engines have no commit ids: their repeated writes may land twice."""
        return not self.is_foreign and attempt.outcome is CallOutcome.UNKNOWN and len(write.attempts) < 4

    def resume(self, write: Write | JointWrite) -> None:
        """After a crash: repeat the interrupted write under the same id."""
        self.pending = write
        if isinstance(write, JointWrite):
            self._attempt_jointly(write)
        else:
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
                table = transaction.table(str(write.table))
                rows = _rows(table.scan(steps.condition_sql(where), limit=1 << 40))
                write.step, write.seen = then(rows), (where, rows)
                steps.call(table, write.step, {"engine": "arrow"})
                self.pause(self.world.staging_s)
                done = transaction.commit()
                assert isinstance(done, Commit)
                return done

        self._follow(write, work)
        self._catch_breath(write)
        return write

    def write_jointly(
        self,
        kind: str,
        steps_of: Mapping[Ident, Step],
        reads: Mapping[Ident, steps.Condition] | None = None,
        decide: Callable[[Mapping[Ident, Seen]], Mapping[Ident, Step]] | None = None,
        *,
        isolation: str = "serializable",
    ) -> JointWrite:
        """Write to several tables in one transaction, in this order, and repeat it if its outcome is unknown.

        ``decide``: what it writes instead depends on what it has read. Such a transaction is not repeated.
        """
        self.calls += 1
        name = f"{self.name}.{self.calls}"
        parts = {
            ident: Write(name, ident, step, commit_id=f"id-{name}", is_part=True) for ident, step in steps_of.items()
        }
        joint = JointWrite(name, kind, parts, reads or {}, decide, isolation)
        self.world.records.joint.append(joint)
        self.world.records.writes.extend(parts.values())
        self.pending = joint if decide is None else None
        self._attempt_jointly(joint)
        while decide is None and self._is_worth_repeating(joint.first, joint.first.attempts[-1]):
            if self.draw.random() > 0.7:
                break
            self.pause(self.draw.choice(_SECOND_THOUGHTS_S))
            self._attempt_jointly(joint)
        self.pending = None
        self._catch_breath(joint.first)
        return joint

    def _attempt_jointly(self, joint: JointWrite) -> None:
        """In a transaction of its own, or in a function that is called again after conflicts."""
        retry, through_run = self.draw.choice(_RETRIES), joint.decide is None and self.draw.random() < 0.3

        def work() -> Mapping[Ident, Commit | None]:
            with self.lake.transaction(
                commit_id=joint.commit_id, isolation=joint.isolation, retry=retry
            ) as transaction:
                self._make(joint, transaction)
                transaction.commit()
                return _commits(joint, transaction)

        def run() -> Mapping[Ident, Commit | None]:
            made: list[Transaction] = []

            def function(transaction: Transaction) -> None:
                made.append(transaction)
                self._make(joint, transaction)

            self.lake.run(function, isolation=joint.isolation, retry=retry, commit_id=joint.commit_id)
            return _commits(joint, made[-1])

        self._follow_all(list(joint.parts.values()), str(joint), run if through_run else work, retry)

    def _make(self, joint: JointWrite, transaction: Transaction) -> None:
        views: dict[Ident, Seen] = {}
        for ident, where in joint.reads.items():
            scan = transaction.table(str(ident)).scan(steps.condition_sql(where), limit=1 << 40)
            views[ident] = where, _rows(scan)
        joint.views.append(views)
        if joint.decide is not None:
            for ident, step in joint.decide(views).items():
                joint.parts[ident].step = step
        for ident, part in joint.parts.items():
            steps.call(transaction.table(str(ident)), part.step, {"engine": "arrow"})
            self.pause(self.world.staging_s)

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
        attempt = self._follow(
            write, lambda: steps.stream(Table(CommitNow(self.lake, write.table)), write.step, options)
        )
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
        return Table(_Observed(CommitNow(self.lake, write.table), self.process, write))

    def _follow(self, write: Write, work: Callable[[], Commit | None], retry: Retry | None = None) -> Attempt:
        """Make the call, and record its outcome."""
        shown = f"{write.name} {write.step}"
        (attempt,) = self._follow_all([write], shown, lambda: {write.table: work()}, retry)
        return attempt

    def _follow_all(
        self,
        writes: Sequence[Write],
        shown: str,
        work: Callable[[], Mapping[Ident, Commit | None]],
        retry: Retry | None,
    ) -> list[Attempt]:
        """Make the call that makes these writes, and record its outcome for each of them."""
        started = self.process.note(f"calls {shown}")
        attempts = [
            Attempt(self.process.name, started, has_id=bool(each.commit_id), retry=retry or Retry()) for each in writes
        ]
        for write, attempt in zip(writes, attempts, strict=True):
            write.attempts.append(attempt)
        redone_before = self.process.redone
        end = _End()
        done: Mapping[Ident, Commit | None] | None = None
        try:
            done = work()
        except CommitUnknown as error:
            end = _End(error=f"{type(error).__name__}: {error.evidence}")
        except FrazilError as error:
            checks = error.conflicts if isinstance(error, ConflictError) else ()
            end = _End(CallOutcome.FAILED, type(error).__name__, frozenset(each.check for each in checks))
        for write, attempt in zip(writes, attempts, strict=True):
            end.tell(attempt, write, done)
            attempt.redone = self.process.redone - redone_before
            last_phase, troubles = self.process.phase
            attempt.undisturbed_since = last_phase if troubles == self.process.troubles else None
        (first, *_) = attempts
        again = ", found already" if first.commit is not None and first.commit.already_committed else ""
        finished = self.process.note(f"hears of {writes[0].name}: {first.outcome.value} {first.error}{again}")
        for attempt in attempts:
            attempt.finished = finished
        return attempts

    def read(self, times: int = 2) -> None:
        """Pin a snapshot, and read it several times while other sessions commit."""
        self.calls += 1
        name = f"{self.name}.{self.calls}"
        started = self.process.note(f"reads as {name}")
        try:
            # With a limit, a scan does not read files ahead in other threads.
            scan = Table(CommitNow(self.lake, self.table)).scan(limit=1 << 40)
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
            self.world.records.reads.append(Read(name, self.table, scan.snapshot_id, rows, started, pinned))
            self.pause(0.5)

    def audit(self, tables: Sequence[Ident], *, in_transaction: bool) -> None:
        """Read several tables at one instant while other sessions commit to them."""
        self.calls += 1
        name = f"{self.name}.{self.calls}"
        started = self.process.note(f"audits as {name}")
        seen: dict[Ident, tuple[int | None, State]] = {}
        try:
            with contextlib.ExitStack() as stack:
                source: Transaction | LakeSnapshot = (
                    stack.enter_context(self.lake.transaction()) if in_transaction else self.lake.snapshot()
                )
                source.table(str(tables[0]))
                pinned = self.process.note(f"{name} is pinned")
                for ident in tables:
                    scan = source.table(str(ident)).scan(limit=1 << 40)
                    seen[ident] = scan.snapshot_id, _rows(scan)
                    self.pause(0.3)
        except FrazilError as error:
            if _is_lasting(error):
                self.world.records.problems.append(f"{name} cannot read: {error!r}")
            return
        self.world.records.audits.append(Audit(name, seen, started, pinned))


@dataclass(frozen=True, slots=True)
class _End:
    """How a call ended, other than by a success: unknown, or with an error."""

    outcome: CallOutcome = CallOutcome.UNKNOWN
    error: str = ""
    checks: frozenset[str] = frozenset()

    def tell(self, attempt: Attempt, write: Write, done: Mapping[Ident, Commit | None] | None) -> None:
        attempt.outcome, attempt.error, attempt.checks = self.outcome, self.error, self.checks
        if done is not None:
            found = attempt.commit = done[write.table]
            # A function whose commit was found later is not told what it was.
            is_done = write.is_part if found is None else found.changed
            attempt.outcome = CallOutcome.COMMITTED if is_done else CallOutcome.UNCHANGED


def _commits(joint: JointWrite, transaction: Transaction) -> Mapping[Ident, Commit | None]:
    done = transaction.result
    if isinstance(done, TransactionCommit):
        return {ident: done.tables[str(ident)] for ident in joint.parts}
    return dict.fromkeys(joint.parts, done)


def _rows(scan: Scan) -> State:
    return tuple(scan.to_arrow().to_pylist())


def _is_lasting(error: FrazilError) -> bool:
    """Whether it is not a transient fault of the simulated disk."""
    return "The simulated" not in f"{error} {error.__cause__}"
