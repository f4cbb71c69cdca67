"""What is told of scripts that were measured: the line that starts them, losses that differ, chains, one training."""

import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plans import only
from relay.comparison.answer_files import own_script
from relay.comparison.inputs import PlannedRun, RunResult
from relay.comparison.objections import outliers
from relay.comparison.request import Request, memory
from relay.spec.run import Run
from summaries import summary_of

ASKED = Request(
    nodes=1, tasks_per_node=1, cpus_per_task=2, gpus_per_node=0, memory_mb=1000, minutes=5, jobs=1,
    expected_seconds=1.0, memory_why="", time_why="",
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("from relay.chain import resume\n")


def run_of(command: str = "python train.py", **comparison: Any) -> Run:
    return only({"command": command, **comparison}, device="cpu")


def printed(run: Run, asked: Request = ASKED) -> list[str]:
    """What the script's words would be: the lines are run, with programs that print their arguments."""
    lines = "\n".join(own_script(run, asked))
    show = 'show() { for word in "$@"; do printf "<%s>" "$word"; done; echo; }\n'
    fake = "".join(f'{name}() {{ show "$@"; }}\n' for name in ("python", "torchrun")) + "scontrol() { echo node1; }\n"
    own = os.environ | {"SLURM_JOB_NODELIST": "node[1-2]"}
    done = subprocess.run(["bash", "-eu", "-c", show + fake + lines], capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_line_that_starts_a_script_has_its_launcher_and_its_values() -> None:
    run = run_of("torchrun train.py --lr {lr}", options={"lr": 0.1}, devices_per_node=2)
    meeting = "<--nnodes=1><--rdzv-backend=c10d><--rdzv-conf=store_type=file><--local-addr=127.0.0.1>"
    where = r"<--rdzv-endpoint=/\S+/agent>"  # in a folder that nobody else can enter
    (line,) = printed(run)
    assert re.fullmatch(f"<--nproc-per-node=2>{meeting}{where}<train.py><--lr><0.1>", line)
    run = run_of("torchrun --nproc-per-node {processes_per_node} train.py {seed}", devices_per_node=2)
    (line,) = printed(run)
    assert re.fullmatch(f"{meeting}{where}<--nproc-per-node><2><train.py><1>", line)


@pytest.mark.parametrize("value", ["a b*", "'", "$(id)", "\\", "{x}", "a\n\nb"])
def test_nothing_of_a_value_is_read_by_the_shell(value: str) -> None:
    run = run_of("python train.py --name={name} {address}:{port}:{name}", options={"name": value})
    assert "\n".join(printed(run)) == f"<train.py><--name={value}><node1:29500:{value}>"


def test_a_script_in_a_chain_of_jobs_is_told_to_go_on_from_its_last_save() -> None:
    Path("other.py").write_text("print('step')\n")
    run, several = run_of("python other.py"), replace(ASKED, jobs=3, minutes=30)
    own = replace(run, strategy=replace(run.strategy, script=None))
    for each in (run, own):
        lines = "\n".join(own_script(each, several))
        assert "save before 30 minutes are over, and go on from the last save. Each of the 3 jobs starts it" in lines
        assert "save before" not in "\n".join(own_script(each, ASKED))


def test_on_several_nodes_torchrun_gets_where_they_meet() -> None:
    run = run_of("torchrun train.py")
    run = replace(run, shape=replace(run.shape, nodes=2, devices_per_node=4, launcher="torchrun"))
    *_, line = own_script(run, ASKED)
    words = shlex.split(line)
    assert words[0] == "srun"
    assert "--nproc-per-node=4" in words[-1]
    assert "--nnodes=2" in words[-1]
    assert "--rdzv-backend=static" in words[-1]  # c10d would read pickles from that port
    assert "--node-rank=${SLURM_NODEID}" in words[-1]
    assert "--master-addr=${MASTER_ADDR}" in words[-1]


def trained(run: Run, losses: list[float]) -> RunResult:
    summary = summary_of(losses={"steps": [*range(len(losses))], "values": losses})
    return RunResult(
        run=run, planned=PlannedRun(id=run.id, gate="script", segments=[1]), summary=summary, error="", verdict=None
    )


def test_losses_that_differ_at_the_same_global_batch_are_pointed_out() -> None:
    runs = [run_of("python train.py {threads}", global_batch_size=8, cpus_per_task=n) for n in (1, 2, 4)]
    same = {run.setting_id: [trained(run, [3.0, 2.0, 1.01]), trained(run, [3.0, 2.0, 0.99])] for run in runs}
    assert outliers(same) == {}
    other = {**same, runs[2].setting_id: [trained(runs[2], [3.0, 2.5, 2.0]), trained(runs[2], [3.0, 2.5, 2.02])]}
    assert [*outliers(other)] == [runs[2].setting_id]
    assert "its last training loss, 2.01, is far from that of the 2 others" in outliers(other)[runs[2].setting_id]
    larger = run_of("python train.py {threads}", global_batch_size=16)
    assert outliers({**same, larger.setting_id: [trained(larger, [3.0, 2.0, 2.0])]}) == {}, "another batch is another"


def test_memory_is_asked_for_all_that_a_script_starts() -> None:
    summary = summary_of(peak_main_memory_bytes=2**30, peak_node_memory_bytes=20 * 2**30)
    asked, why = memory(run_of(), [summary], None)
    assert asked > 20 * 1024
    assert "all that the command starts" in why
