"""The preflight's job, around the processes that collect the facts."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from relay.base import ending
from relay.base.ending import Ending
from relay.base.files import read_json, write_json
from relay.chain.writers import make_own
from relay.launch.launcher import launch
from relay.preflight import nccl_log
from relay.preflight.checks import check_all
from relay.preflight.facts import gathered, rank_file, specification
from relay.preflight.findings import Finding
from relay.run_folder import faults
from relay.run_folder.known_faults import Kind, look_up
from relay.run_folder.snapshot import freeze

COLLECTED, PROBLEMS = "collected.json", "problems.json"


def run_preflight(spec: Path, results: Path, output: Path, attempt: int = 1) -> int:
    """Find out, judge, and write `output` (facts.json, with the findings); returns the job's exit status.

    0: nothing keeps runs of this shape and stack from training; 1: something does, and `problems.json` beside the
    output has a line for each, which a retry (`attempt` > 1) only repeats; 75: interrupted, worth a retry.
    """
    folder = output.parent
    if attempt > 1 and (earlier := read_json(folder / PROBLEMS)):
        return ending.fault("\n".join(earlier))
    _forget(output)
    arguments = ["--spec", str(spec), "--output", str(folder / COLLECTED)]
    status = launch(spec, "preflight.facts", folder, arguments, freeze(None, folder=results / "code"))  # today's code
    run, job = specification(spec)
    passing = (Kind.HARDWARE, Kind.BUSY)  # another node, or another time, may do
    if passed := [fault for fault in faults.of_ranks(folder) if fault.is_a(*passing)]:
        return ending.say(faults.outcome(passed[0], f"preflight {run.id}", status))
    facts = read_json(folder / COLLECTED)
    complete = facts is not None
    if facts is None:
        facts = gathered(run, job, [alone for rank in range(run.shape.world_size) if (alone := _alone(folder, rank))])
    findings = check_all(facts) + _from_faults(folder, facts, run.shape.world_size)
    facts["findings"] = [asdict(finding) for finding in findings]
    for finding in findings:
        print(f"{finding.severity}: {finding.line}")
    stops = [finding for finding in findings if finding.severity == "stop"]
    if stops:
        write_json(folder / COLLECTED, facts)
        problems = list(dict.fromkeys(f"preflight {run.id}: {finding.line}" for finding in stops))
        write_json(folder / PROBLEMS, problems)
        ending.record(Ending(ending.FAULT, "\n".join(problems)))
        return ending.FAULT
    if status != 0 or not complete:
        return ending.say(faults.outcome(None, f"preflight {run.id}", status))
    write_json(output, facts)
    print(f"preflight {run.id}: nothing stops training here")
    return 0


def _alone(folder: Path, rank: int) -> dict[str, Any] | None:
    """What a rank knew before the ranks could tell each other; None where it came to nothing."""
    facts: dict[str, Any] | None = read_json(rank_file(folder, rank))
    return facts and facts | {"nccl": nccl_log.read(folder / f"nccl-{rank}.log")}


def _forget(output: Path) -> None:
    """Remove what earlier attempts left."""
    make_own(output.parent)
    faults.forget(output.parent)
    for path in (output, output.with_name(COLLECTED), output.with_name(PROBLEMS)):
        path.unlink(missing_ok=True)
    for path in (*output.parent.glob("rank-*.json"), *output.parent.glob("nccl-*.log")):
        path.unlink()


def _from_faults(folder: Path, facts: dict[str, Any], world_size: int) -> list[Finding]:
    """The processes' own errors, explained. The loss of a peer is none, unless all were there and none could join."""
    recorded = faults.of_ranks(folder)
    for error in (fault.error for fault in recorded):
        if (row := look_up(error)) and row.kind not in (Kind.LOST_PEER, Kind.HANG):  # which may follow from another
            return [Finding(row.name, "stop", error, row.remedy)]
    fault = faults.collect(folder)
    if fault and not (fault.met_by == "srun" and fault.again()):
        return [Finding("error", "stop", fault.error, fault.advice)]
    ranks = facts["ranks"]
    if not recorded or len(ranks) < world_size or any(rank.get("joined") for rank in ranks):
        return []
    meetings = sorted({f"{m['name']}:{m['port']}" for rank in ranks if (m := rank["rendezvous"])})
    return [
        Finding(
            "rendezvous",
            "stop",
            f"the processes could not join each other at {', '.join(meetings)}: {recorded[0].error}",
            "see that the nodes reach each other at that address and port: name the interface between them "
            "(`network_interface` in the site's file), and ask your site about firewalls",
        )
    ]
