"""A gate's processes judge further gates of its shape: what passes there counts, what fails is judged again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import plans
import preloaded
from gate_runs import FEW_STEPS, Gates, planned, shortened
from own_gates import own_strategy
from relay.base.ending import INTERRUPTED
from relay.base.files import read_json, write_json
from relay.equivalence.along import judged_along, settle
from relay.equivalence.job import run_gate
from relay.equivalence.verdict import ALONG
from relay.launch.launcher import Start
from relay.spec.run import changed

ACTS = {
    "nothing": "pass",
    "again": "assert torch.are_deterministic_algorithms_enabled()",
    "is killed": "os.kill(os.getpid(), 9)",
    "turns a switch": "torch.use_deterministic_algorithms(False)",
}
MORE = """\
        import torch
        {acts}
"""


@pytest.fixture(scope="module")
def specs(gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The specifications of a strategy's gates: one for each of the things that it may do, an option of its."""
    acts = "\n        ".join(f"if options['acts'] == {name!r}: {code}" for name, code in ACTS.items())
    stated = f"options={{'acts': 'nothing'}}, choices={{'acts': {tuple(ACTS)!r}}}"
    path = own_strategy(tmp_path_factory.mktemp("own"), "acting", requirements=stated, more=MORE.format(acts=acts))
    asked = {"strategy": path.stem, "options": {"acts": [*ACTS]}}
    found = {}
    for gate in plans.planned(asked, strategy_folders=[str(path.parent)], task="lenet-digits").gates.values():
        short = shortened(gate, FEW_STEPS)
        found[gate.strategy.options["acts"]] = gates.results / "equivalence" / "gates" / short.id / "gate.json"
        short.write(found[gate.strategy.options["acts"]])
    return found


@pytest.fixture(autouse=True)
def without_verdicts(specs: dict[str, Path]) -> None:
    for spec in specs.values():
        for name in ("verdict.json", ALONG):
            spec.with_name(name).unlink(missing_ok=True)


def judge(gates: Gates, spec: Path, *beside: Path, start: Start = preloaded.start) -> tuple[int, Any]:
    """The exit status of a gate's job, and its verdict."""
    reference = gates.reference(shortened(planned("cpu")[1], FEW_STEPS))
    output = spec.with_name("verdict.json")
    others = dict.fromkeys(beside, reference)
    return run_gate(spec, reference, gates.results, output, start=start, beside=others), read_json(output)


@pytest.mark.slow
def test_what_has_passed_along_is_the_verdict_of_its_own_job(gates: Gates, specs: dict[str, Path]) -> None:
    """Also after a strategy that has left a switch turned."""
    first, *others = (specs[name] for name in ("turns a switch", "nothing", "again"))
    status, verdict = judge(gates, first, *others)
    assert (status, verdict["equivalent"]) == (0, True)
    for spec in others:
        assert not spec.with_name("verdict.json").exists()
        status, found = judge(gates, spec, start=lambda *_: pytest.fail("processes were started"))
        assert (status, found["equivalent"], found["gate"]) == (0, True, spec.parent.name)
        assert found.keys() == verdict.keys()
        assert found["strategy_source"] == verdict["strategy_source"]
        assert not spec.with_name(ALONG).exists()


@pytest.mark.slow
def test_a_gate_that_fails_beside_others_is_judged_again_by_its_own_job(gates: Gates, specs: dict[str, Path]) -> None:
    killed = specs["is killed"]
    ended, verdict = judge(gates, specs["nothing"], killed, specs["again"])
    assert (ended, verdict["equivalent"]) == (0, True)
    taken: list[str] = []

    def noted(spec: Path, role: str, work: Path, arguments: Sequence[str], code: Path) -> int:
        taken.extend(arguments[arguments.index("--beside") + 1 :])
        return preloaded.start(spec, role, work, arguments, code)

    # It has ended the processes before the last one's turn.
    ended, verdict = judge(gates, specs["again"], killed, start=noted)
    assert (ended, verdict["equivalent"]) == (0, True)
    assert taken == []
    assert judge(gates, killed) == (INTERRUPTED, None)


def test_what_a_stopped_call_has_judged_along_is_not_judged_again(tmp_path: Path) -> None:
    gates = {name: tmp_path / "equivalence" / "gates" / name / ALONG for name in ("passed", "failed", "cut", "known")}
    passed = {"gate": "passed", "equivalent": True, "strategy_source": "s"}
    write_json(gates["passed"], passed)
    write_json(gates["failed"], None)
    write_json(gates["cut"], {"gate": "cut", "equivalent": True})  # its job was killed before it was complete
    write_json(gates["known"], passed)
    write_json(gates["known"].with_name("verdict.json"), {"gate": "known"})
    settle(tmp_path)
    verdicts = {name: read_json(path.with_name("verdict.json")) for name, path in gates.items()}
    assert verdicts == {"passed": passed, "failed": None, "cut": None, "known": {"gate": "known"}}
    assert not any(path.exists() for path in gates.values())


def test_only_gates_of_one_shape_and_snapshot_share_processes() -> None:
    gate, _ = planned("ddp")
    fsdp, _ = planned("fsdp")  # it needs a newer torch, which is a package
    own, _ = planned("right_own_loop")
    assert judged_along(gate, fsdp)
    assert judged_along(own, gate)
    assert not judged_along(gate, own)
    assert not judged_along(gate, planned("ddp", 4)[0])
    assert judged_along(gate, changed(gate, precision="bf16"))
    assert judged_along(gate, replace(gate, task=replace(gate.task, name="another")))
    assert not judged_along(gate, replace(gate, task=replace(gate.task, file="mine.py")))
    assert judged_along(gate, changed(gate, threads=2))  # each computes in its own number
    assert not judged_along(gate, replace(gate, strategy=replace(gate.strategy, node_needs=("mps",))))
