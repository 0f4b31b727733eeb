"""Fetches Iceberg's jars with Maven, once, and compiles the Java programs of this folder against them.

Run as a script it does both and prints where they are: ``python tests/interop/jars.py``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
JARS = Path(os.environ.get("FRAZIL_JARS") or ROOT / ".jars")
SOURCES = HERE / "java"

_JDK = "install a JDK 17 or newer (on Debian and Ubuntu: apt install openjdk-17-jdk-headless)"


class JavaMissing(RuntimeError):
    """Java or Maven is not on this machine; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Program:
    """One Java main class with its own classpath."""

    main: str
    folder: str
    also: tuple[str, ...] = ()
    """Jars of other folders, as patterns under the jar folder."""

    @property
    def source(self) -> Path:
        return SOURCES / self.folder

    @property
    def classes(self) -> Path:
        return JARS / f"{self.folder}-classes"

    @property
    def jars(self) -> Path:
        return JARS / self.folder

    def classpath(self) -> str:
        return os.pathsep.join(
            [str(self.classes), f"{self.jars}/*", *(str(j) for p in self.also for j in JARS.glob(p))]
        )

    def command(self, *arguments: str) -> list[str]:
        # A short-lived JVM on a busy machine: the serial collector and the first compiler tier start fastest.
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx512m"]
        return ["java", *options, "-cp", self.classpath(), self.main, *arguments]


CATALOG = Program("FrazilInterop", "catalog")
REST = Program("RestServer", "rest", also=("catalog/hadoop-client-*.jar",))
SPARK = Program("", "spark")
"""No program: jars for a Spark session."""
S3 = Program("", "s3")
"""The same: Hadoop's connector to S3."""


def ready(program: Program) -> Program:
    """Make sure that the program's jars and classes are there. Safe to call from many processes at once."""
    _need("java", _JDK)
    JARS.mkdir(parents=True, exist_ok=True)
    with open(JARS / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.also:
            _fetch(CATALOG)
        _fetch(program)
        _compile(program)
    return program


def fetched(program: Program) -> list[Path]:
    """The program's jars, without its classes."""
    JARS.mkdir(parents=True, exist_ok=True)
    with open(JARS / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fetch(program)
    return sorted(program.jars.glob("*.jar"))


def _fetch(program: Program) -> None:
    pom = program.source / "pom.xml"
    if _stamped(program.jars, stamp := _digest([pom])):
        return
    _need("mvn", "install Maven 3.8 or newer (on Debian and Ubuntu: apt install maven)")
    shutil.rmtree(program.jars, ignore_errors=True)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={program.jars}"]
    _run(["mvn", "-q", "-B", "-f", str(pom), *goal], f"Maven could not fetch the jars that {pom} names")
    (program.jars / ".stamp").write_text(stamp)


def _compile(program: Program) -> None:
    sources = sorted(program.source.glob("*.java"))
    if _stamped(program.classes, stamp := _digest([program.source / "pom.xml", *sources])):
        return
    _need("javac", _JDK)
    shutil.rmtree(program.classes, ignore_errors=True)
    command = ["javac", "-Xlint:all,-processing,-classfile,-path", "-Werror", "-proc:none", "-d", str(program.classes)]
    files = [str(s) for s in sources]
    _run([*command, "-cp", program.classpath(), *files], f"{program.main} does not compile")
    (program.classes / ".stamp").write_text(stamp)


def _need(tool: str, advice: str) -> None:
    if shutil.which(tool) is None:
        raise JavaMissing(
            f"The interop tests run Iceberg's own Java library, and {tool} is not on this machine: {advice}."
        )


def _run(command: list[str], problem: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise JavaMissing(f"{problem}:\n{done.stdout[-4000:]}")


def _digest(files: list[Path]) -> str:
    return hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()


def _stamped(folder: Path, stamp: str) -> bool:
    path = folder / ".stamp"
    return path.exists() and path.read_text() == stamp


if __name__ == "__main__":
    try:
        for each in (CATALOG, REST):
            print(f"{ready(each).main}: {each.jars}")
    except JavaMissing as problem:
        sys.exit(str(problem))
