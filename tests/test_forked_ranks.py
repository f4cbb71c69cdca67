"""torchrun's ranks as forks of their launcher: the same processes, and the same training, as those started anew."""

from __future__ import annotations

import json
import time
from typing import Any

import psutil
import pytest

from chain_results import assert_same, result
from chain_runs import DDP, DROPOUT, Bench, finish, short_run, wait_until
from relay.base.lifeline import LAUNCHER
from relay.launch import forked
from relay.launch.command_lines import command
from relay.process.cpus import BINDING, VEILED
from relay.run_folder.attempt_name import ATTEMPT
from relay.run_folder.attempts import LAUNCHED

pytest_plugins = ["chain_runs"]

# What torchrun tells its ranks; ports and ids differ from start to start.
VARYING = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "PYTHONPATH", LAUNCHER, ATTEMPT)
NOTED = """\
if self.steps == 1:
            told = {"pid": os.getpid(), "session": os.getsid(0), "parent": os.getppid()}
            told |= {"environment": dict(os.environ)}
            told |= {"shown": Path("/proc/self/cmdline").read_text().split("\\0"), "threads": torch.get_num_threads()}
            Path(os.environ["NOTES"], os.environ["RANK"]).write_text(json.dumps(told))"""


def noted(bench: Bench, name: str, **environment: str) -> tuple[Any, dict[int, dict[str, Any]]]:
    """A short run of two ranks: what it computed, and what each rank noted of itself."""
    notes = bench.folder / f"notes-{name}"
    notes.mkdir()
    own = bench.strategy("noting", NOTED, base="ddp", imports="import json\nimport torch")
    chain = bench.chain(name, total_steps=6, **DDP | own)
    ended = chain.segment(NOTES=str(notes), **environment)
    assert ended.status == 0, ended.errors
    return result(chain), {rank: json.loads((notes / str(rank)).read_text()) for rank in (0, 1)}


@pytest.mark.slow
def test_forked_ranks_are_and_compute_what_ranks_started_anew_are_and_compute(bench: Bench) -> None:
    forks, ranks = noted(bench, "forked")
    # A binding of threads is only read when OpenMP is loaded; this one asks for none.
    anew, others = noted(bench, "anew", OMP_PROC_BIND="false")
    assert_same(forks, anew)
    for rank in (0, 1):
        mine, theirs = ranks[rank], others[rank]
        assert mine["session"] == mine["pid"]
        assert mine["parent"] == ranks[0]["parent"]
        left_out = {*VARYING, "TORCH_FR_DUMP_TEMP_FILE", LAUNCHED, "NOTES", "OMP_PROC_BIND"}
        told = [{k: v for k, v in each["environment"].items() if k not in left_out} for each in (mine, theirs)]
        assert told[0] == told[1]
        assert mine["environment"]["TORCHELASTIC_RUN_ID"]
        assert mine["threads"] == theirs["threads"]
        assert [word for word in mine["shown"] if word][:5] == theirs["shown"][:5]


@pytest.mark.slow
def test_ranks_share_their_launchers_memory_and_end_with_it(bench: Bench) -> None:
    """Addresses are random in each new program; a fork has its parent's."""
    chain = bench.chain("ending", total_steps=1_000_000, **DDP)
    job = chain.begin()
    wait_until(lambda: list(chain.work.glob("records/*.jsonl")), job)
    ranks = bench.trainers()
    (launcher,) = {rank.parent() for rank in ranks}
    where = {next(m.addr for m in p.memory_maps(grouped=False) if "libtorch_cpu" in m.path) for p in (launcher, *ranks)}
    assert len(ranks) == 2
    assert len(where) == 1
    launcher.kill()
    assert finish(job).status == 75
    wait_for_none(bench)


@pytest.mark.slow
def test_a_launcher_killed_before_its_ranks_have_work_leaves_none(bench: Bench) -> None:
    chain = bench.chain("early", total_steps=1_000_000, **DDP)
    job = chain.begin()
    wait_until(lambda: len(psutil.Process(job.pid).children(recursive=True)) > 1, job)
    (launcher,) = psutil.Process(job.pid).children()
    launcher.kill()
    assert finish(job).status == 75
    wait_for_none(bench)


def wait_for_none(bench: Bench) -> None:
    """Wait until no process of the test is left."""
    deadline = time.monotonic() + 60
    while left := bench.processes():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_only_ranks_on_cpus_whose_network_is_not_compiled_are_forked() -> None:
    def words(**values: Any) -> list[str]:
        return command(short_run(DROPOUT, **DDP, **values), ["python"], ["role", "work"])

    assert words()[3] == "--fork"
    assert "--fork" not in words(compile=True)
    assert "--fork" not in words(device="cuda")


@pytest.mark.parametrize("name", [prefix + name for prefix in ("", VEILED) for name in BINDING])
def test_threads_that_are_bound_need_a_process_started_anew(name: str) -> None:
    assert forked.may_fork({"OMP_NUM_THREADS": "2"})
    assert not forked.may_fork({name: "close"})
