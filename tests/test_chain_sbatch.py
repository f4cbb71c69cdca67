"""`relay-chain sbatch` on a real Slurm: one job after the other, a limit, and never two at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from living import until
from mini_slurm import UNFINISHED, MiniSlurm
from pages import ROOT, block, blocks, masked

pytestmark = pytest.mark.slow
PAGE = "docs/make-your-script-a-chain.md"
STOPS = """'echo "{\\"step\\": 1, \\"reason\\": \\"\\"}" > $RELAY_CHAIN_NOTE; exit 1'"""  # as torchrun ends


def relay_chain(cluster: MiniSlurm, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Type `relay-chain sbatch` and these words, on the login node."""
    installed = folder / "relay-chain"  # as the wheel's entry point
    installed.write_text(f"#!{sys.executable}\nimport sys\nfrom relay.chain.command import main\nsys.exit(main())\n")
    installed.chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{cluster.environment['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(ROOT / "scripts")}
    return cluster.run(installed, "sbatch", *words, cwd=folder, env=own, check=False)


def job_script(folder: Path, *commands: str) -> None:
    head = ["#!/bin/bash", "#SBATCH --job-name=chained --time=5 --output=log-%j --requeue"]
    (folder / "job.sh").write_text("\n".join([*head, *commands, ""]))


def chained(cluster: MiniSlurm, first: str) -> list[dict[str, str]]:
    """The jobs of the chain that began with this one, when none is queued any more."""

    def jobs() -> list[dict[str, str]]:
        return [job for job in cluster.jobs() if job["JobName"] == "chained" and int(job["JobId"]) >= int(first)]

    until(lambda: all(job["JobState"] not in UNFINISHED for job in jobs()), "the chain is over")
    return jobs()


def number(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stderr.split()[2]


def test_the_script_on_the_page_is_a_chain_of_jobs(cluster: MiniSlurm, tmp_path: Path) -> None:
    """Word for word; that such loops end bit for bit as uncut ones is shown in `test_chain_order.py`."""
    (script,) = [each.text for each in blocks(PAGE) if each.language == "python"]
    assert all(script.count(f"  # {line}:") == 1 for line in (1, 2, 3))
    # The page's own steps take less than a millisecond: none would be left when the ranks have agreed to stop.
    slowly = "step == 50 and dist.get_rank() and os.kill(os.getpid(), 15), __import__('time').sleep(0.02)"
    script = script.replace("        run.after(step)", f"        {slowly}\n        run.after(step)")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "job.sh").write_text(block(PAGE, "#!/bin/bash").text)
    typed = block(PAGE, "relay-chain sbatch --jobs 20 job.sh").text.split()[2:]
    done = relay_chain(cluster, tmp_path, *typed[:-1], "--job-name=chained", "--output=log-%j", typed[-1])
    jobs = chained(cluster, number(done))
    first, second = ((tmp_path / f"log-{job['JobId']}").read_text() for job in jobs[:2])
    assert [job["JobState"] for job in jobs] == ["FAILED", "COMPLETED", "CANCELLED"], first + second
    assert [job["ExitCode"] for job in jobs[:2]] == ["75:0", "0:0"]
    assert jobs[0]["EndTime"] <= jobs[1]["StartTime"]
    assert masked(block(PAGE, "relay.chain: stops after step").text)[0] in masked(first)
    assert masked(block(PAGE, "relay.chain: goes on from step").text)[0] in masked(second)
    assert "trained 160 steps in 10 epochs" in second


def test_the_limit_is_kept(cluster: MiniSlurm, tmp_path: Path) -> None:
    job_script(tmp_path, f"{sys.executable} -m relay.chain sh -c {STOPS}")
    jobs = chained(cluster, number(relay_chain(cluster, tmp_path, "--jobs", "2", "job.sh")))
    assert [job["ExitCode"] for job in jobs] == ["75:0", "75:0"]
    assert "it was the last job allowed; submit it again" in (tmp_path / f"log-{jobs[-1]['JobId']}").read_text()


def test_a_fault_ends_the_chain(cluster: MiniSlurm, tmp_path: Path) -> None:
    job_script(tmp_path, f"{sys.executable} -m relay.chain false")
    jobs = chained(cluster, number(relay_chain(cluster, tmp_path, "job.sh")))
    assert [job["JobState"] for job in jobs] == ["FAILED", "CANCELLED"]


def test_a_killed_job_is_followed_and_a_requeued_one_submits_no_second_job(cluster: MiniSlurm, tmp_path: Path) -> None:
    waits = "touch began-${SLURM_RESTART_COUNT:-0}; until test -e go; do sleep 0.2; done"
    job_script(tmp_path, f"{sys.executable} -m relay.chain sh -c '{waits}'")
    first = number(relay_chain(cluster, tmp_path, "./job.sh", "--lr=1", "a b"))
    second = str(int(first) + 1)
    running(cluster, tmp_path, first)
    refused = relay_chain(cluster, tmp_path, "job.sh")
    assert refused.returncode == 1
    assert f"job.sh is a chain already: job {second} is queued or runs; cancel it first" in refused.stderr
    record(tmp_path).unlink()  # the queue alone tells the next job
    cluster.run("scontrol", "requeue", first)
    running(cluster, tmp_path, first, starts=1)
    # A signal that comes before the command reaches nobody.
    until((tmp_path / "began-1").exists, "the command runs", 120)
    cluster.run("scancel", "--signal=KILL", "--full", first)
    running(cluster, tmp_path, second)  # and has submitted its own next one
    (tmp_path / "go").touch()
    jobs = chained(cluster, first)
    assert [job["JobId"] for job in jobs] == [first, second, str(int(second) + 1)]
    assert [job["JobState"] for job in jobs[1:]] == ["COMPLETED", "CANCELLED"]


def record(folder: Path) -> Path:
    return folder / f".job.sh.{os.getuid()}.chain"


def running(cluster: MiniSlurm, folder: Path, job: str, starts: int = 0) -> None:
    """Wait until the job runs, after so many restarts, and has submitted the next one."""

    def seen() -> bool:
        found, told = cluster.job(job), record(folder)
        runs = (found["JobState"], int(found["Restarts"])) == ("RUNNING", starts)
        return runs and told.exists() and f'"after": "{job}"' in told.read_text()

    until(seen, f"job {job} runs")
