"""The recommended script, submitted to a cluster as it stands, and the answer that it comes from."""

import json
import time
from dataclasses import replace
from pathlib import Path

from mini_slurm import UNFINISHED, MiniSlurm
from relay.comparison.answer import Answer
from relay.comparison.answer_files import Recommendation, prepare, recommendation
from relay.comparison.decision import answers
from relay.comparison.inputs import read_inputs
from relay.comparison.table import comparison_rows


def submit(cluster: MiniSlurm, folder: Path, script: Path) -> tuple[list[dict[str, str]], int]:
    """The ended job, or jobs of an array, and the most memory in bytes that their processes had at once on a node."""
    job_id = cluster.run("sbatch", "--parsable", script, cwd=folder).stdout.strip()
    most, end = 0, time.monotonic() + 300
    while True:
        jobs = [job for job in cluster.jobs() if job_id in (job["JobId"], job.get("ArrayJobId"))]
        if not any(job["JobState"] in UNFINISHED for job in jobs):
            return jobs, most
        assert time.monotonic() < end, jobs
        most = max(most, *(sum(map(_share, cluster.processes(node))) for node in ("c1", "c2")))
        time.sleep(0.2)


def _share(pid: int) -> int:
    """A process's memory in bytes; of pages that several processes share, its share."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def answer_of(folder: Path) -> Answer:
    inputs = read_inputs(folder / "results/plan.json", folder / "results")
    (found,) = answers(inputs, comparison_rows(inputs))
    return found


def recommended(folder: Path, strategy: str, launcher: str) -> Recommendation:
    """What the answer would be if it were this setting, with its run ready to be trained."""
    found = answer_of(folder)
    best = next(
        each for each in found.candidates if (each.run.strategy.name, each.run.shape.launcher) == (strategy, launcher)
    )
    answer = replace(found, certainty="alone", best=best, others=(), runner_up=None)
    made = recommendation(answer, folder / "results")
    prepare(made, answer, folder / "results")
    return made


def trained(folder: Path, run: str) -> bool:
    """Whether the run has come to its end."""
    specification = json.loads((folder / f"results/runs/{run}/run.json").read_text())
    return (folder / f"results/runs/{run}/step-{specification['length']['total_steps']}.json").is_file()
