"""The simulator for hours: seeds in chunks, each saved when it is done, so that a run can be ended and taken up.

    python benchmarks/simulated.py --commits 1000000 --jobs 2      make simulate-long

Most chunks are of the usual kind; the others have more faults, or are on third-party catalogs, or both.
``benchmarks/results/simulation.json`` has the counts, and the digest of each chunk: ``frazil simulate --seed N --seeds
1000`` of the same version prints the same one. ``--spot 5`` runs that many of its chunks again and compares the
digests, so that counts of another version do not pass for this one's; ``--anew`` forgets what is there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import RESULTS
from frazil_verification.simulator import SCENES, campaign

CHUNKS = {**dict.fromkeys(SCENES, 300), "usual": 1000}
"""How many seeds are a chunk."""
TURNS = (*(each for each in SCENES if each != "usual"), *("usual",) * 10)
"""One chunk after the other."""
Json = dict[str, Any]


def summed(found: list[Json]) -> Json:
    """All chunks together."""
    totals = _totals(found)
    seconds = totals["elapsed_s"]
    return {
        "benchmark": "simulation",
        "figures": {},
        "steps": SCENES["usual"].steps,
        **totals,
        "seeds_per_s": round(totals["seeds"] / seconds, 2),
        "commits_per_s": round(totals["commits"] / seconds, 1),
        "scenes": {scene: _totals([each for each in found if each["scene"] == scene]) for scene in SCENES},
        "faults": dict(_counted(found, "faults").most_common()),
        "outcomes": dict(sorted(_counted(found, "outcomes").items())),
        "violations": sum(len(each["violations"]) for each in found),
        "chunks": found,
    }


def _counted(found: list[Json], name: str) -> Counter[str]:
    return sum((Counter(each[name]) for each in found), Counter())


def _totals(found: list[Json]) -> Json:
    return {
        name: round(sum(each[name] for each in found), 1)
        for name in ("seeds", "commits", "snapshots", "reads", "elapsed_s")
    }


def chunks() -> Iterator[tuple[str, int]]:
    """All chunks there are: a scene and its first seed."""
    ahead = {scene: itertools.count(0, seeds) for scene, seeds in CHUNKS.items()}
    return ((scene, next(ahead[scene])) for scene in itertools.cycle(TURNS))


def run(scene: str, seed: int, jobs: int) -> Json:
    report = campaign(replace(SCENES[scene], seed=seed), CHUNKS[scene], jobs)
    return {"scene": scene, "seed": seed, **report.to_json()}


def spot(found: list[Json], how_many: int, jobs: int) -> int:
    """Run some of the chunks again, and say which of them is another one by now."""
    others = 0
    for each in random.sample(found, min(how_many, len(found))):
        is_same = run(each["scene"], each["seed"], jobs)["digest"] == each["digest"]
        others += not is_same
        word = "the same" if is_same else "ANOTHER HISTORY"
        print(f"{each['scene']}, {each['seeds']} seeds from {each['seed']}: {word}")
    return int(others > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--commits", type=int, default=1_000_000, help="so many, and whole chunks")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--result", type=Path, default=RESULTS / "simulation.json", help="also what is done already")
    parser.add_argument("--anew", action="store_true", help="do not go on where it was")
    parser.add_argument("--spot", type=int, default=0, metavar="N", help="only run N of the chunks again")
    asked = parser.parse_args()
    done: list[Json] = [] if asked.anew or not asked.result.exists() else json.loads(asked.result.read_text())["chunks"]
    if asked.spot:
        return spot(done, asked.spot, asked.jobs)
    known = {(each["scene"], each["seed"]) for each in done}
    ahead = (each for each in chunks() if each not in known)
    result = summed(done) if done else {"commits": 0, "violations": 0}
    while result["commits"] < asked.commits and not result["violations"]:
        done.append(run(*next(ahead), asked.jobs))
        result = summed(done)
        asked.result.write_text(_lines(result))
        sys.stderr.write(f"{result['seeds']} seeds, {result['commits']} commits\n")
    print(*(f"{name}: {result[name]}" for name in ("seeds", "commits", "commits_per_s", "violations")), sep="\n")
    return int(result["violations"] > 0)


def _lines(result: Json) -> str:
    """JSON with a line for each chunk."""
    head = json.dumps({**result, "chunks": []}, indent=1)
    lines = ",\n".join("  " + json.dumps(each) for each in result["chunks"])
    return head.replace('"chunks": []', f'"chunks": [\n{lines}\n ]') + "\n"


if __name__ == "__main__":
    sys.exit(main())
