"""The product beside the Alliance's own scripts, on real CIFAR-10, each started as a user's job is, in turns.

--page cifar10-cpu         the script for CPUs as it stands, batch 512, with two threads
--page pytorch-ddp-test    the script for DistributedDataParallel, batch 256 in each of two processes, with gloo in
                           place of NCCL, and without its words for GPUs

Of the page's script the time of its whole epoch counts, from the first batch that is asked for to the last; of the
product's job the time of all steps that it recorded. The product's seconds of each setting are told.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import DATA, PAGES, ROOT, page_script, report, trained, unpacked, workflow_run

from relay.spec.run import Run

IMAGES, BATCH = 50_000, 512
BESIDE = ROOT / "scripts/relay/script/beside"  # torchvision beside a torch of another index
ON_CPUS = (
    ("nccl", "gloo"),
    ("torch.cuda.device_count()", "int(os.environ['SLURM_NTASKS_PER_NODE'])"),
    ("torch.cuda.set_device(current_device)", "pass"),
    (", device_ids=[current_device]", ""),
    (".cuda()", ""),
)
# Runs a script, and prints how long its loader was asked for batches.
TIMED = """
import runpy, sys, time
from torch.utils.data import DataLoader
batches = DataLoader.__iter__
def timed(self):
    began = time.perf_counter()
    yield from batches(self)
    print(f"EPOCH {time.perf_counter() - began:.6f}", flush=True)
DataLoader.__iter__ = timed
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# What of the product is compared with each page; the best of these counts.
OURS: dict[str, list[dict[str, Any]]] = {
    "cifar10-cpu": [{"strategy": "cpu", "cpus_per_task": 2}, {"strategy": "ddp", "devices_per_node": 2}],
    "pytorch-ddp-test": [{"strategy": "ddp", "devices_per_node": 2}],
}


def of_page(page: str, script: Path, cifar10: Path) -> float:
    """Seconds of an epoch of the page's script, the longest of its processes."""
    processes = 1 if page == "cifar10-cpu" else 2
    words = [f"--batch_size={BATCH // processes}"]
    if processes > 1:
        words += ["--init_method", f"tcp://127.0.0.1:{_free_port()}", "--world_size=2", "--max_epochs=1"]
    started = []
    for rank in range(processes):
        slurm = {"CPUS_PER_TASK": 2 // processes, "NTASKS_PER_NODE": processes, "NODEID": 0, "LOCALID": rank}
        own = {f"SLURM_{name}": str(value) for name, value in slurm.items()}
        own |= {"OMP_NUM_THREADS": str(2 // processes), "PYTHONPATH": f"{BESIDE}:{ROOT}/scripts"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", TIMED, script, *words],
                cwd=cifar10.parent, env=os.environ | own, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
    printed = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        sys.exit(f"the page's script failed:\n{printed[0]}")
    return max(float(seconds) for each in printed for seconds in re.findall(r"EPOCH ([\d.]+)", each))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", choices=[*OURS], default="cifar10-cpu")
    parser.add_argument("--pages", type=Path, default=PAGES, help="the folder with the centres' pages")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with archives of public data")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=1.0, help="of the product's runs")
    given = parser.parse_args()
    text = page_script(f"{given.page}.py", given.pages)
    if given.page != "cifar10-cpu":
        for gpu, cpu in ON_CPUS:
            text = text.replace(gpu, cpu)
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        cifar10 = unpacked("cifar-10-batches-py.tar.xz", folder / "data", given.data)
        (folder / "page.py").write_text(text)
        runs: dict[str, Run] = {}
        for ours in OURS[given.page]:
            comparison = ours | {"global_batch_size": BATCH}
            config = {"task": "lenet-cifar10", "epochs": given.epochs, "comparisons": [comparison]}
            runs[ours["strategy"]] = workflow_run(config, folder / "results", root=cifar10)
        pages, speeds = [], {name: [] for name in runs}  # type: dict[str, list[float]]
        for _ in range(given.rounds):
            pages.append(IMAGES / of_page(given.page, folder / "page.py", cifar10))
            for name, run in runs.items():
                speeds[name].append(trained(run, folder / "results"))
    medians = {name: statistics.median(each) for name, each in speeds.items()}
    best = max(medians, key=lambda name: medians[name])
    ratios = [ours / page for ours, page in zip(speeds[best], pages, strict=True)]
    report(f"images/s over those of {given.page}.py", ratios, page_images_per_second=round(statistics.median(pages)),
           **{f"{name}_images_per_second": round(speed) for name, speed in medians.items()}, best=best)  # fmt: skip


if __name__ == "__main__":
    main()
