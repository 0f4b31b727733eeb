"""A deterministic simulation of many writers: the real commit path on a virtual clock, with faults and an oracle."""

from frazil_verification.simulator.actors import ACTORS, of_one_table, of_the_bank, usual
from frazil_verification.simulator.campaign import SCENES, Report, campaign, failure_json
from frazil_verification.simulator.faults import Fault, parse_faults
from frazil_verification.simulator.lake import CatalogKind
from frazil_verification.simulator.oracle import Violation
from frazil_verification.simulator.run import Result, simulate
from frazil_verification.simulator.shrink import shrink
from frazil_verification.simulator.world import Case

__all__ = [
    "ACTORS",
    "SCENES",
    "Case",
    "CatalogKind",
    "Fault",
    "Report",
    "Result",
    "Violation",
    "campaign",
    "failure_json",
    "of_one_table",
    "of_the_bank",
    "parse_faults",
    "shrink",
    "simulate",
    "usual",
]
