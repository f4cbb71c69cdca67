"""What has been found against a run that others went on from: they inherit it, through any number of adoptions."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relay.base.files import read_json_or, write_json_over
from relay.run_folder.run_chain import RunChain
from relay.run_folder.verdicts import of_batch, refuses
from relay.spec.run import OwnBatch

PROOF = "proof.json"  # beside run.json: which gate proves the run
COMPUTING = ("torch", "cuda", "nccl")  # what decides what is computed; Python's own version does not


def note(folder: Path, gate: str) -> None:
    """Write down which gate proves the run of this folder."""
    if read_json_or(folder / PROOF, None) != {"gate": gate}:
        write_json_over(folder / PROOF, {"gate": gate})


def origin(folder: Path, chain: RunChain | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be known later of a run that another one goes on from: its gate, and what it was trained with.

    `folder` is that of its run.json, `facts` are what a process of its last attempt recorded.
    """
    sources = {name: getattr(chain, name, None) for name in ("generation", "strategy_source", "training_source")}
    proof = read_json_or(folder / PROOF, None)
    gate = proof.get("gate") if isinstance(proof, dict) else None  # none where it is damaged: then nothing is proven
    return {**sources, "gate": gate, "versions": facts.get("versions"), "dataset": facts.get("dataset")}


def inherited(results: Path, adopted: Mapping[str, Any] | None) -> list[str]:
    """What is found against the runs that a run went on from, one line for each of them that is not proven.

    `adopted` is the chain's `adopted_from`, which has that run's own `adopted_from` in turn.
    """
    lines = []
    while adopted:
        if problem := next(_against(results, adopted), ""):
            lines.append(
                f"it went on from step {adopted['step']} of run {adopted['run']}, which is not proven: {problem}"
            )
        adopted = adopted.get("adopted_from")
    return lines


def _against(results: Path, run: Mapping[str, Any]) -> Iterator[str]:
    """What is found against one run."""
    gate = run.get("gate")
    verdict = read_json_or(results / "equivalence" / "gates" / str(gate) / "verdict.json", None) if gate else None
    if (
        not isinstance(verdict, dict)
        or verdict.get("gate", gate) != gate
        or not {"equivalent", "problems", "parts", "notes"} <= set(verdict)
    ):
        yield "its gate has given no verdict"
        return
    if run.get("own_batch"):  # of runs that an earlier version adopted it is not known
        verdict = of_batch(verdict, OwnBatch(**run["own_batch"]))
    if refuses(verdict):
        yield f"its gate: {next(iter(verdict['problems']), 'failed')}"
    if run.get("strategy_source") not in (None, verdict.get("strategy_source")):
        yield "the code gated is not the code that ran"
    mine, proven = _made_with(run), _made_with(verdict)
    yield from (
        f"proven with another {name}: {proven[name]}, not {mine[name]}"
        for name in mine
        if proven.get(name, mine[name]) != mine[name]
    )
    yield from _spot_check(results, run)


def _made_with(facts: Mapping[str, Any]) -> dict[str, Any]:
    versions = {name: version for name, version in (facts.get("versions") or {}).items() if name in COMPUTING}
    return versions | ({"dataset": facts["dataset"]} if facts.get("dataset") else {})


def _spot_check(results: Path, run: Mapping[str, Any]) -> Iterator[str]:
    """What the spot check of the run's setting says of it."""
    verdict = read_json_or(results / "equivalence" / "spot_checks" / str(run.get("setting")) / "verdict.json", None)
    for each in verdict.get("runs", ()) if isinstance(verdict, dict) else ():
        failed = each["run"] == run["run"] and each["status"] == "failed"
        if failed and each.get("generation") in (None, run.get("generation")):
            yield f"its spot check: {next(iter(each['problems']), 'failed')}"
