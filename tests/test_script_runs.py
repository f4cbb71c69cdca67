"""Commands as their jobs run them: what they find, what is recorded, and how each of them may end."""

import json
import signal
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from living import LONGEST_SECONDS, children, until, well, words
from plans import only
from relay.script.command import Here, variables
from script_runs import commanded

SPEAKING = """
    import json, os, sys, time
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import helper
    near = os.path.join(os.path.dirname(__file__), "beside")
    assert (open(near).read(), open("../up/data/x").read(), open("above.txt").read()) == ("7", "42", "8")
    open(os.path.join(os.path.dirname(__file__), "written beside"), "w").close()
    names = ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK", "SLURM_TMPDIR", "PYTHONSAFEPATH", "RANK")
    found = {name: os.environ.get(name) for name in names}
    found |= {"words": sys.argv[1:], "helper": helper.__file__, "data": open("data/x").read(), "folder": os.getcwd()}
    json.dump(found, open("found.json", "w"))
    for epoch in range(4):
        time.sleep(0.05)
        print(f"epoch {epoch} loss {1 / (epoch + 1)} acc {20 * epoch} % {1000 * (epoch + 1)} img/s")
"""
RANK = "int(__import__('os').environ['RANK'])"
LATER = f"import sys, time\ntime.sleep({RANK})\nsys.exit(3 * ({RANK} == 1))\n"  # rank 1 fails
READ = {"samples_per_second": "([0-9.]+) img/s", "loss": "loss ([0-9.]+)", "accuracy": "acc ([0-9.]+)"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("helper.py").write_text("")
    return tmp_path


@pytest.mark.slow
def test_a_script_runs_unchanged_in_a_folder_of_its_own(tmp_path: Path) -> None:
    for name, text in {"set/x": "42", "some.json": "{}", "sub/beside": "7", "above.txt": "8"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = "python sub/train.py --config=some.json --seed {seed} above.txt"
    links = {"data": "set", "sub": "sub", "../up/data": "set"}
    made = commanded(SPEAKING, command, links=links, read=READ, cpus_per_task=2, threads=1)
    well(made.run())
    assert made.places.folder / tmp_path.name == made.folder, "a folder above, for what lies above"
    found = json.loads((made.folder / "found.json").read_text())
    assert Path(found["folder"]) == made.folder.absolute()
    assert (found["data"], found["OMP_NUM_THREADS"], found["SLURM_CPUS_PER_TASK"]) == ("42", "1", "2")
    assert (found["PYTHONSAFEPATH"], found["RANK"]) == (None, None)
    assert Path(found["SLURM_TMPDIR"]).is_dir()
    config, _, seed, _ = found["words"]
    assert (config, seed) == ("--config=some.json", "1"), "the words are those that were written"
    assert Path(found["helper"]) == made.folder.absolute() / "helper.py", "what the script imports lies as at home"
    assert not (tmp_path / "sub" / "written beside").exists()
    assert not {*tmp_path.iterdir()} & {tmp_path / "found.json", tmp_path / "data"}

    summary = made.summary()
    assert (summary["status"], summary["attempts"]) == ("done", 1)
    assert 2000 < summary["samples_per_second"] < 4000
    assert (summary["train_loss"], summary["test_accuracy"]) == (0.25, 0.6)
    assert summary["losses"]["values"] == [1.0, 0.5, pytest.approx(1 / 3), 0.25]
    assert summary["peak_main_memory_bytes"] > 2**20
    assert 0 < summary["goodput"] < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "comparison", "told"),
    [
        ("print('almost')\nraise SystemExit(3)\n", {}, ["the command ended with status 3: almost\n| almost"]),
        ("print('img/s 7')\n", {"read": READ}, ["the pattern '([0-9.]+) img/s' matches nothing", "| img/s 7"]),
        ("from relay.chain import step\n", {}, ["it ended with status 0 without a single step"]),
        (LATER, {"launcher": "direct", "devices_per_node": 2}, ["the command ended with status 3"]),
    ],
    ids=["its status", "no match", "no step", "a rank after the others have ended"],
)
def test_a_command_that_fails_is_told_and_not_tried_again(script: str, comparison: dict[str, Any], told: Any) -> None:
    made = commanded(script, **{"command": "python train.py", **comparison})
    status, printed = made.run()
    assert status == 1, printed
    what = made.told()["what"]
    assert all(each in what for each in told), what
    assert not (made.places.run / "step-1.json").exists()
    assert made.run(attempt=2)[0] == 1, "a retry ends at once with the same words"
    assert "not tried again" in made.told()["what"]


@pytest.mark.slow
def test_a_script_that_hangs_is_told_to_end_after_its_time() -> None:
    made = commanded("import time\nprint('waits', flush=True)\ntime.sleep(600)\n")
    assert made.run(1, "--minutes", "0.05")[0] == 1
    assert "the command had not ended after 0.05 minutes (runtime_minutes)" in made.told()["what"]
    assert made.told()["what"].endswith("\n| waits")
    assert "more runtime_minutes" in made.told()["remedy"]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_a_failed_run() -> None:
    made = commanded("print('loss nan 5 img/s')\n", read={**READ, "loss": "loss ([a-z0-9.]+)", "accuracy": None})
    assert made.run()[0] == 0
    assert made.summary()["reason"] == "the loss that the command printed is nan: the training diverged"


@pytest.mark.slow
def test_a_script_that_asks_to_be_started_again_is() -> None:
    made = commanded(
        "import os, time\ntime.sleep(0.5)\nagain = os.path.exists('mine')\nopen('mine', 'w')\n"
        "raise SystemExit(75 * (not again))\n"
    )
    assert (made.run()[0], made.told()["status"]) == (75, 75)
    assert "stopped after step 0 (status 75)" in made.told()["what"]
    Path("train.py").write_text("1 / 0\n")  # an edit while a chain runs changes nothing
    assert made.run(attempt=2)[0] == 0, "what it has left there is its own checkpoint"
    assert made.summary()["samples_per_second"] < 1, "both attempts are the run"


@pytest.mark.slow
def test_a_script_that_was_killed_begins_with_an_empty_folder() -> None:
    killed = str(Path.cwd() / "killed")
    made = commanded(
        "import os, signal\nassert not os.path.exists('mine')\nopen('mine', 'w')\n"
        f"if not os.path.exists({killed!r}):\n    open({killed!r}, 'w')\n    os.kill(os.getpid(), 9)\n"
    )
    assert made.run()[0] == 75
    well(made.run(attempt=2))
    assert (made.places.work / "folder-1" / "mine").exists(), "and what it has left is kept"


@pytest.mark.slow
@pytest.mark.parametrize(("told", "command"), [(signal.SIGTERM, "python"), (signal.SIGUSR1, "torchrun")])
def test_a_script_that_saves_and_ends_well_after_a_signal_has_not_ended(told: signal.Signals, command: str) -> None:
    """Slurm may send it to all of a job's processes: SIGUSR1 would end torchrun at once."""
    made = commanded(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (open('saved', 'w'), sys.exit(0)))\n"
        "import os\nopen('began', 'w').write(str(os.getpid()))\ntime.sleep(600)\n",
        f"{command} train.py",
    )
    job = made.start()
    began = made.folder / "began"
    until(lambda: began.exists() and began.read_text(), "it has begun")
    for each in (psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # told by its parent, and gone
            each.send_signal(told)
    printed, _ = job.communicate(timeout=LONGEST_SECONDS)
    assert (made.folder / "saved").exists()
    assert not psutil.pid_exists(int(began.read_text())), "its command has ended with it"
    assert (job.returncode, made.told()["status"]) == (75, 75), printed
    assert not (made.places.run / "step-1.json").exists()


FIRST = """
    import os, signal, time
    parent, own = os.getppid(), os.getpid()
    os.kill(parent, signal.SIGSTOP)
    os.kill(parent, signal.SIGTERM)
    if not os.fork():
        while os.getppid() == own:
            time.sleep(0.01)
        os.kill(parent, signal.SIGCONT)
"""
ALONE = "import signal; signal.raise_signal(signal.SIGTERM)"


@pytest.mark.slow
@pytest.mark.parametrize("script", [FIRST, ALONE], ids=["with status 0", "by the signal"])
def test_a_script_that_has_ended_before_its_parent_hears_the_same_signal_was_stopped(script: str) -> None:
    """Slurm signals all processes of a job, and this one is the quickest."""
    made = commanded(script)
    status, printed = made.run()
    assert (status, made.told()["status"]) == (75, 75), printed


@pytest.mark.slow
def test_what_a_command_leaves_behind_ends_with_it_and_what_it_writes_elsewhere_is_warned_of(tmp_path: Path) -> None:
    place = tmp_path / "out.txt"
    made = commanded(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('pid', 'w').write(str(child.pid))\n"
        f"open({str(place)!r}, 'w').write('x')\n"
    )
    began = time.monotonic()
    printed = well(made.run())
    assert time.monotonic() - began < 240
    left = int((made.folder / "pid").read_text())
    assert not psutil.pid_exists(left) or not words(psutil.Process(left))
    assert f"something wrote outside of its folder: {place};" in printed
    assert "pid" not in printed.replace("something", "").split("warning:")[1]


CHAIN = """
    import time
    import torch
    from relay.chain import resume
    net = torch.nn.Linear(3, 3)
    run = resume(model=net, save_steps=5, save_minutes=9)
    for step, _ in run.steps(range(1000), until=40):
        time.sleep(0.05)
        run.after(step)
    torch.save(net.state_dict(), "end.pt")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_chain_goes_on_after_a_kill() -> None:
    made = commanded(CHAIN, warmup_steps=2)
    job = made.start()
    second = "checkpoints/step-[1-9][0-9]*"  # the first one was told by then
    until(lambda: [*made.folder.glob(second)], "two checkpoints are there")
    (command,) = [each for each in children(job.pid) if (words(each) or [""])[-1].endswith("train.py")]
    command.kill()
    printed, _ = job.communicate(timeout=LONGEST_SECONDS)
    assert job.returncode == 75, printed
    assert "ended without a word" in made.told()["what"]
    reached = json.loads((made.places.work / "reached.json").read_text())["step"]
    assert reached >= 5
    printed = well(made.run(attempt=2))
    # One more may have been complete when the kill came, and not yet told.
    assert int(printed.partition("goes on from step ")[2].split()[0]) >= reached
    summary = made.summary()
    assert (summary["attempts"], summary["steps_reached"]) == (2, 40)
    assert (made.folder / "end.pt").exists()
    assert made.run(attempt=3)[0] == 0
    assert made.summary() == summary, "an attempt that finds nothing left to train counts"
    assert not [*made.places.work.glob("*/*-0003*")], "and has left something"


def test_a_script_that_was_edited_after_the_plan_is_not_run_in_its_name() -> None:
    made = commanded("print('one')\n")
    Path("train.py").write_text("print('other')\n")
    status, printed = made.run()
    assert status == 1, printed
    assert "train.py was edited after the plan was made; start the same call again" in printed


WHERE = """
    import json, os
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
    found = {name: os.environ.get(name) for name in names}
    json.dump(found, open(f"found-{os.environ['RANK']}.json", "w"))
"""


@pytest.mark.slow
def test_processes_started_directly_within_a_step_of_slurms_have_ranks_of_their_own(monkeypatch) -> None:
    """As in `srun --pty bash`, whose step has one process."""
    for name in ("SLURM_PROCID", "SLURM_LOCALID", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    made = commanded(WHERE, devices_per_node=2, launcher="direct")
    well(made.run())
    for rank in range(2):
        found = json.loads((made.folder / f"found-{rank}.json").read_text())
        assert (found["SLURM_PROCID"], found["SLURM_LOCALID"], found["SLURM_NTASKS"]) == (str(rank), str(rank), "2")
        assert (found["PMI_RANK"], found["PMIX_RANK"], found["OMPI_COMM_WORLD_RANK"]) == (None, None, None)


@pytest.mark.parametrize(("launcher", "gpus"), [(None, 0), (None, 2), ("none", 1), ("direct", 2)])
def test_what_a_script_under_srun_may_read_is_there_for_every_launcher_without_slurm(launcher, gpus) -> None:
    """The table of names that the centres' scripts read."""
    Path("train.py").touch()
    shape: dict[str, Any] = {"devices_per_node": gpus or 2, "cpus_per_task": 2, "launcher": launcher}
    run = only({"command": "python train.py", **shape}, device="cuda" if gpus else "cpu", gpus=gpus)
    found = variables(run, Here.of(run, {}), Path("work"), 1, {})
    of_pages = {"GPUS_PER_NODE": str(gpus), "SLURM_GPUS_ON_NODE": str(gpus), "SLURM_CPUS_PER_TASK": "2"}
    of_pages |= {"SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": socket.gethostname()}
    of_pages |= {"SLURM_SUBMIT_DIR": str(Path.cwd()), "SLURM_TMPDIR": tempfile.gettempdir()}
    if launcher == "direct":  # a process of its own for each
        of_pages |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
        of_pages |= {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}
    assert {name: found[name] for name in of_pages} == of_pages
    assert variables(run, Here.of(run, {}), Path("work"), 1, {"GPUS_PER_NODE": "8"})["GPUS_PER_NODE"] == "8"
