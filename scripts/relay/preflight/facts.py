"""Collects what is really there, on every rank of a job: `python -m relay.launch.worker preflight.facts WORK --help`.

What a rank finds alone is written before it joins the others, so that a rendezvous that fails can be explained.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from relay.base import options
from relay.base.files import write_json
from relay.preflight import node
from relay.spec.job import Job
from relay.spec.run import Preflight


def specification(path: Path) -> tuple[Preflight, dict[str, Any] | None]:
    """The run, and what was asked of Slurm for it (None: nothing), of a specification (`run.json`)."""
    values = json.loads(path.read_text(encoding="utf-8"))
    return Preflight.from_dict(values), values.get("job")


def rank_file(work: Path, rank: int) -> Path:
    """Where a rank writes what it knows so far."""
    return work / f"rank-{rank}.json"


def gathered(run: Preflight, job: Mapping[str, Any] | None, ranks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The facts as the checks read them; `complete` where every rank has joined."""
    shape = run.shape
    counts = {"world_size": shape.world_size, "processes_per_node": shape.processes_per_node}
    described = {"id": run.id, "stack": run.stack, "compile": run.compile, "node_needs": run.node_needs}
    described |= asdict(shape) | counts | asdict(run.feeding)
    return {"run": described, "job": job, "complete": False, "allreduce": [], "ranks": ranks} | more


def main(arguments: list[str]) -> None:
    """Parse the command line, collect alone and together, and write the facts; then check what was granted."""
    parser = options.parser(__doc__, "spec", "output", prog="preflight.facts")
    given = parser.parse_args(arguments)

    run, job = specification(given.spec)
    mine = node.collect(run, job)
    work, rank = given.output.parent, mine["rank"]
    write_json(rank_file(work, rank), mine)

    from relay.preflight import checks, collective, devices, nccl_log
    from relay.process import machine  # torch is loaded only here
    from relay.process.ranks import Ranks

    machine.set_threads(run.shape.threads, run.shape.interop_threads)
    mine |= devices.collect(run.shape.device, torchvision_too=mine["local_rank"] == 0)
    write_json(rank_file(work, rank), mine)
    if any(each.severity == "stop" for each in checks.check_all(gathered(run, job, [mine]), joining=True)):
        sys.exit(1)  # the job says why, and does not wait for a timeout

    log = work / f"nccl-{rank}.log"
    log.unlink(missing_ok=True)
    nccl_log.ask(log)
    ranks = Ranks.join(run.shape.device, run.shape.backend)
    mine |= {"joined": True, "kernel": devices.kernel(ranks.device)}
    mine["device_index"] = ranks.device.index
    write_json(rank_file(work, rank), mine)
    bandwidths = collective.all_reduce(ranks, [other["node"] for other in ranks.gather(mine)])
    mine["nccl"] = nccl_log.read(log)
    mine["seen"] = {
        "work": collective.files_seen(ranks, work),
        "node_disk": collective.files_seen(ranks, Path(mine["node_disk"]["path"]), wait_seconds=1.0),
    }
    mine["lock"] = collective.lock_fault(ranks, work)
    mine["clock_ahead_seconds"] = collective.clock_ahead_seconds(ranks)
    others = ranks.gather(mine)
    if ranks.rank == 0:
        write_json(given.output, gathered(run, job, others, complete=True, allreduce=bandwidths))
    machine.check_granted(run, ranks, Job.of({"job": job}))
    ranks.leave()
