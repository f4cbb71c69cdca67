"""The jobs of the equivalence stage, around the processes that train: a reference, and a gate's verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relay.base import ending
from relay.base.ending import Ending
from relay.base.errors import EndedItself, UserError
from relay.base.files import read_json, read_json_or, write_json
from relay.chain.signals import SIGNALS
from relay.datasets import verified
from relay.equivalence.raised import CANNOT_RUN, cannot_run, refusing
from relay.equivalence.verdict import ALONG, FAULTED, UNFINISHED, Verdict, all_problems, failed_at
from relay.launch.launcher import Start, launch, started
from relay.run_folder import faults
from relay.run_folder.faults import Fault
from relay.run_folder.known_faults import Kind
from relay.run_folder.places import dataset_folder
from relay.run_folder.snapshot import planned
from relay.spec.identity import source_digest, strategy_sources
from relay.spec.job import Job
from relay.spec.run import Gate, Training

# Faults that a strategy may have caused, or others beside it.
BLAMED = (Kind.DEVICE, Kind.MEMORY, Kind.HANG)
TWICE = ", and failed twice, the second time alone"
WITHOUT_A_WORD = "its processes were killed, or crashed without a word"


def beside(words: Sequence[str], equivalence: Path) -> dict[Path, Path]:
    """Specifications and references of gates, of the words GATE:REFERENCE on a command line."""
    named = (word.split(":") for word in words)
    gates, references = equivalence / "gates", equivalence / "references"
    return {gates / gate / "gate.json": references / reference / "reference.pt" for gate, reference in named}


def _started(spec: Path, role: str, results: Path, output: Path, *extra: str, start: Start = launch) -> int:
    """Start the role's processes on the run's dataset; returns their status."""
    run = Training.read(spec)
    dataset = dataset_folder(results, run.dataset)
    try:
        verified.check(dataset)
    except UserError as error:  # recorded, so that a retry does not try it again
        output.unlink(missing_ok=True)
        faults.record(output.parent, error)
        return 1
    file = Path(run.strategy.file) if run.strategy.file else None  # the reference knows nothing of strategies
    return started(spec, role, results, output, ["--dataset", str(dataset), *extra], strategy_file=file, start=start)


def run_reference(
    spec: Path,
    results: Path,
    output: Path,
    attempt: int = 1,
    start: Start = launch,
    beside: Mapping[Path, Path] = MappingProxyType({}),
) -> int:
    """Train a reference and write it to `output` (.pt); returns the job's exit status.

    `beside` are gates of one process that are compared with it: as `run_gate` has it. The
    reference stands once it is written, whatever ends its process after it.
    A fault of the program's own is recorded; a retry (`attempt` > 1) only repeats it in words.
    """
    if (ended := faults.begin(output.parent, "reference", attempt)) is not None:
        return ended
    others = _unjudged(beside, results, attempt, own_reference=output)
    status = _started(spec, "equivalence.reference", results, output, *_words(others), start=start)
    _keep_along(others, results)
    if status != 0 and not output.is_file():
        return faults.concluded(output.parent, "reference", status)
    if status != 0:
        _end_in_a_further_gate(output)
    return 0


def run_gate(
    spec: Path,
    reference: Path,
    results: Path,
    output: Path,
    attempt: int = 1,
    start: Start = launch,
    beside: Mapping[Path, Path] = MappingProxyType({}),
) -> int:
    """Judge a strategy and write `verdict.json`; returns the job's exit status. `start` starts its processes.

    `beside` are the specifications of gates of the same shape, whose jobs are to follow, each with its reference. The
    same processes judge them after this one, and what they pass is kept for their jobs. A gate that fails there is
    judged again by its own job: what others have left in the processes does not count against it.

    A strategy that fails in the gate has not shown that it computes the same training: that is its verdict. A fault
    that others may have caused (of a GPU, of memory, a killed process) has shown nothing: the job ends as interrupted,
    and a retry (`attempt` > 1) judges this gate alone. Only what fails there again is the strategy's.
    A user's mistake fails the job, and a retry only repeats it in words.
    """
    if (ended := faults.begin(output.parent, "gate", attempt)) is not None:
        return ended
    if verdict := read_json_or(output.parent / ALONG, None):
        return _concluded(output, verdict)
    unfinished, noted = output.parent / UNFINISHED, output.parent / FAULTED
    unfinished.unlink(missing_ok=True)
    if attempt == 1:
        noted.unlink(missing_ok=True)
    others = _unjudged(beside, results, attempt)
    arguments = ["--reference", str(reference), *_words(others)]
    status = _started(spec, "equivalence.gate", results, output, *arguments, start=start)
    run = Gate.read(spec)
    if _keep_along(others, results):  # its own verdict was complete before
        if status != 0:
            _end_in_a_further_gate(output)
    elif status != 0:  # what ended badly has proven nothing, whatever it wrote before
        output.unlink(missing_ok=True)
    verdict = read_json(output)
    if verdict is None:
        if status == 0:  # nobody has killed them
            faults.record(output.parent, EndedItself("its processes ended by themselves in the middle of their work"))
        fault = faults.collect(output.parent)
        if no_verdict := _not_the_strategys(spec, fault, f"gate {run.id}", status, noted):
            return ending.say(no_verdict)
        if noted.exists() or not fault:
            why = fault.error if fault else WITHOUT_A_WORD
            problem = f"{CANNOT_RUN}{TWICE if noted.exists() else ''}: {why}"
        else:
            problem = cannot_run(fault, run.task.file)
        verdict = _failed(run, read_json(unfinished), problem)
    for left in (unfinished, noted):
        left.unlink(missing_ok=True)
    return _concluded(output, verdict | _source(run, results))


def _not_the_strategys(spec: Path, fault: Fault | None, what: str, status: int, noted: Path) -> Ending | None:
    """How a gate's job ends whose fault tells nothing of the strategy; None where the strategy is to blame.

    What others may have caused is `noted` the first time. A second time there were no others: a hang stays a fault.
    """
    outcome = faults.outcome(fault, what, status)
    row = fault.row if fault else None
    if fault is None:  # on a cluster, Slurm may have ended the processes
        blamed = Job.read(spec) is None and -status not in SIGNALS
    elif row:
        blamed = row.kind in BLAMED
    elif fault.mistake:  # a missing dataset, say
        blamed = False
    else:
        return None
    if not blamed:
        return outcome
    if noted.exists() and row and row.kind is Kind.HANG:  # whoever waits has computed nothing else
        return replace(outcome, status=ending.FAULT, what=f"{outcome.what}{TWICE}")
    faults.forget(noted.parent)  # else the retry would only repeat it in words
    if noted.exists():
        return None
    write_json(noted, asdict(fault) if fault else None)
    return replace(outcome, status=ending.INTERRUPTED)


def _source(run: Gate, results: Path) -> dict[str, str]:
    name = "strategy_source"
    return {name: planned(results / "code", run).get(name) or source_digest(strategy_sources(Path(run.strategy.file)))}


def _unjudged(
    beside: Mapping[Path, Path], results: Path, attempt: int, own_reference: Path | None = None
) -> dict[Path, Path]:
    """Those of these gates that no other job has judged along, and whose reference and data are there.

    None in a retry, whose gate is to be alone. `own_reference` will be there.
    """
    there: dict[str, bool] = {}

    def has_data(spec: Path) -> bool:
        folder = dataset_folder(results, Gate.read(spec).dataset)
        if folder.name not in there:
            with suppress(UserError):
                verified.check(folder)
                there[folder.name] = True
        return there.setdefault(folder.name, False)

    if attempt > 1:
        return {}
    open_ = {spec: file for spec, file in beside.items() if not (spec.parent / ALONG).exists()}
    return {spec: file for spec, file in open_.items() if (file == own_reference or file.is_file()) and has_data(spec)}


def _words(beside: Mapping[Path, Path]) -> list[str]:
    return ["--beside", *(str(path) for pair in beside.items() for path in pair)]


def _end_in_a_further_gate(output: Path) -> None:
    """The processes failed after the job's own work, which stands."""
    print("its processes ended in a further gate, which its own job judges again", flush=True)
    faults.forget(output.parent)


def _keep_along(specs: Collection[Path], results: Path) -> bool:
    """Complete what was found of the gates that were judged along; whether the processes came to one of them."""
    for spec in specs:
        if verdict := read_json_or(spec.parent / ALONG, None):
            write_json(spec.parent / ALONG, verdict | _source(Gate.read(spec), results))
    return any((spec.parent / ALONG).exists() for spec in specs)


def _concluded(output: Path, verdict: dict[str, Any]) -> int:
    """Write a gate's verdict and tell it; the job's exit status."""
    write_json(output, verdict)
    (output.parent / ALONG).unlink(missing_ok=True)
    conclusion = "equivalent" if verdict["equivalent"] else refusing(all_problems(verdict))
    if why := verdict.get("unprovable"):
        conclusion = f"not proven, because {why}"
    print(f"gate {verdict['gate']}: {conclusion}")
    return 0


def settle(results: Path) -> None:
    """What a driver does with the verdicts that a stopped call has left: they become their gates' own."""
    for path in results.glob(f"equivalence/gates/*/{ALONG}"):
        verdict, output = read_json_or(path, None), path.with_name("verdict.json")
        if verdict and "strategy_source" in verdict and not output.exists():
            path.rename(output)
        else:
            path.unlink()


def _failed(run: Gate, unfinished: dict[str, Any] | None, problem: str) -> dict[str, Any]:
    """The verdict of a strategy that failed in the gate: at an own batch, where `unfinished` tells of one."""
    if unfinished:
        return failed_at(unfinished, problem)
    return Verdict(run.id, problems=[problem]).as_dict()
