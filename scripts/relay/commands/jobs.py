"""The jobs of the workflow, which can also be tried by hand: `relay train --run ID --first 0 --last 440`.

Each reads its options before it imports what does the work.
"""

import json
from argparse import ArgumentParser
from pathlib import Path

from relay.base.files import write_json
from relay.base.options import add


def train(parser: ArgumentParser, words: list[str]) -> int:
    """A segment of a run."""
    given = add(parser, "run", "first", "last", "attempt", "minutes", "results").parse_args(words)
    from relay.training.job import Places, run_segment

    return run_segment(Places(given.results, given.run), given.first, given.last, given.attempt, given.minutes)


def reference(parser: ArgumentParser, words: list[str]) -> int:
    """A reference."""
    given = add(parser, "spec", "output", "attempt", "results").parse_args(words)
    from relay.equivalence.job import run_reference

    return run_reference(given.spec, given.results, given.output, given.attempt)


def gate(parser: ArgumentParser, words: list[str]) -> int:
    """A gate, and others along with it."""
    along = "gates that the same processes judge afterwards: GATE:REFERENCE"
    parser.add_argument("--beside", nargs="*", default=[], help=along)
    given = add(parser, "spec", "output", "reference", "attempt", "results").parse_args(words)
    from relay.equivalence.along import beside
    from relay.equivalence.job import run_gate

    others = beside(given.beside, given.spec.parents[2])
    return run_gate(given.spec, given.reference, given.results, given.output, given.attempt, beside=others)


def spot_check(parser: ArgumentParser, words: list[str]) -> int:
    """The spot check of a setting's runs, and of other settings' along with it."""
    parser.add_argument("--runs", nargs="+", required=True, help="the runs' ids: folders below results/runs")
    parser.add_argument("--beside", nargs="*", default=[], help="runs of other settings that the same process checks")
    given = add(parser, "spec", "output", "attempt", "results").parse_args(words)
    from relay.spot_check.job import run_spot_check

    return run_spot_check(given.spec, given.runs, given.results, given.output, given.attempt, beside=given.beside)


def look(parser: ArgumentParser, words: list[str]) -> int:
    """A task's card."""
    given = add(parser, "spec", "results", "output", "attempt").parse_args(words)
    from relay.card.job import run_look

    return run_look(given.spec, given.results, given.output, given.attempt)


def preflight(parser: ArgumentParser, words: list[str]) -> int:
    """A preflight, or the page of all."""
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--spec", type=Path, help="the specification of a run of this shape and stack")
    action.add_argument("--page", type=Path, metavar="FOLDER", help="show what the preflights below this folder found")
    parser.add_argument("--only", nargs="*", metavar="ID", help="of the page: these preflights alone, run or not")
    parser.add_argument("--output", type=Path, help="where the facts go (.json); others beside it")
    given = add(parser, "attempt", "results").parse_args(words)
    if given.page:
        from relay.preflight.page import show

        return show(given.page, given.only)
    if given.output is None:
        parser.error("--output is needed with --spec")
    from relay.preflight.job import run_preflight

    return run_preflight(given.spec, given.results, given.output, given.attempt)


def measure_speed(parser: ArgumentParser, words: list[str]) -> int:
    """The speed of a setting."""
    given = add(parser, "spec", "output", "attempt", "results").parse_args(words)
    from relay.spec.job import Job
    from relay.spec.run import Run
    from relay.training.speed import measure

    specification = json.loads(given.spec.read_text(encoding="utf-8"))  # once: it may be a pipe
    run, job = Run.from_dict(specification), Job.of(specification)
    write_json(given.output, measure(run, given.results, job=job, attempt=given.attempt))
    return 0


def probe(parser: ArgumentParser, words: list[str]) -> int:
    """The largest batch per device."""
    given = add(parser, "spec", "output", "attempt", "results").parse_args(words)
    from relay.probe.job import run_probe

    return run_probe(given.spec, given.results, given.output, given.attempt)


def largest_model(parser: ArgumentParser, words: list[str]) -> int:
    """The largest depth."""
    given = add(parser, "spec", "output", "attempt", "results").parse_args(words)
    from relay.probe.job import run_probe
    from relay.probe.largest_model import DepthSearch

    return run_probe(given.spec, given.results, given.output, given.attempt, DepthSearch)


def libtorch(parser: ArgumentParser, words: list[str]) -> int:
    """A run's model in C++, or the smallest program."""
    parser.add_argument("--run", help="the run whose model is compared; without: the smallest program")
    given = add(parser, "spec", "results", "output", "attempt").parse_args(words)
    from relay.libtorch.job import run_libtorch

    return run_libtorch(given.spec, given.run, given.results, given.output, given.attempt)


def selftest(parser: ArgumentParser, words: list[str]) -> int:
    """A part of the self-test."""
    from relay.selftest.parts import PARTS

    parser.add_argument("--part", required=True, help=f"one of: {', '.join(PARTS)}")
    given = add(parser, "spec", "output", "results", "attempt").parse_args(words)
    from relay.selftest.job import run_part

    return run_part(given.part, given.spec, given.results, given.output)
