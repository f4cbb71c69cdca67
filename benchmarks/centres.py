"""The product beside the Alliance's own scripts, on real CIFAR-10, each started as a user's job is, in turns.

--page cifar10-cpu         the script for CPUs as it stands, batch 512, with two threads
--page pytorch-ddp-test    the script for DistributedDataParallel, batch 256 in each of two processes, with gloo in
                           place of NCCL, and without its words for GPUs
--page cifar10-gpu         the script for one GPU as it stands, without data workers; its speed with some is told too.
                           `--network` puts one of the product's networks in the place of its own

Of the page's script the time of its whole epoch counts, from the first batch that is asked for to the last; of the
product's job the time of all steps that it recorded. On a GPU both begin after `WARM` steps, in which kernels are
chosen and networks compiled. The product's speed in each setting is told.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from common import DATA, PAGES, ROOT, page_script, report, trained, unpacked, workflow_run, written
from torch.utils.flop_counter import FlopCounterMode

from relay.spec.run import Run, changed

IMAGES, BATCH = 50_000, 512
BESIDE = ROOT / "scripts/relay/script/beside"  # torchvision beside a torch of another index
ON_CPUS = (
    ("nccl", "gloo"),
    ("torch.cuda.device_count()", "int(os.environ['SLURM_NTASKS_PER_NODE'])"),
    ("torch.cuda.set_device(current_device)", "pass"),
    (", device_ids=[current_device]", ""),
    (".cuda()", ""),
)
WARM = 20  # steps, on a GPU
# Runs a script, and prints how long its loader was asked for batches, after the first so many.
TIMED = """
import runpy, sys, time, torch
from torch.utils.data import DataLoader
batches = DataLoader.__iter__
def now():
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
def timed(self):
    began = now()
    for number, batch in enumerate(batches(self)):
        yield batch
        if number + 1 == warm:
            began = now()
    print(f"EPOCH {now() - began:.6f}", flush=True)
DataLoader.__iter__ = timed
del sys.argv[0]
warm = int(sys.argv.pop(0))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# What of the product is compared with each page; the best of these counts.
OURS: dict[str, list[dict[str, Any]]] = {
    "cifar10-cpu": [{"strategy": "cpu", "cpus_per_task": 2}, {"strategy": "ddp", "devices_per_node": 2}],
    "pytorch-ddp-test": [{"strategy": "ddp", "devices_per_node": 2}],
    "cifar10-gpu": [
        {"strategy": "single_gpu", "precision": precision, "compile": compiled}
        for precision in ("fp32", "tf32", "bf16")
        for compiled in (False, True)
    ],
}
DATA_WORKERS = (2, 4, 8)


def of_page(page: str, script: Path, cifar10: Path, batch: int, workers: int = 0, warm: int = 0) -> float:
    """Images per second of an epoch of the page's script after so many steps, by the longest of its processes."""
    processes = 2 if page == "pytorch-ddp-test" else 1
    words = [f"--batch_size={batch // processes}", f"--num_workers={workers}"]
    if processes > 1:
        words += ["--init_method", f"tcp://127.0.0.1:{_free_port()}", "--world_size=2", "--max_epochs=1"]
    started = []
    for rank in range(processes):
        slurm = {"CPUS_PER_TASK": 2 // processes, "NTASKS_PER_NODE": processes, "NODEID": 0, "LOCALID": rank}
        own = {f"SLURM_{name}": str(value) for name, value in slurm.items()}
        own |= {"OMP_NUM_THREADS": str(2 // processes), "PYTHONPATH": f"{BESIDE}:{ROOT}/scripts"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", TIMED, str(warm), script, *words],
                cwd=cifar10.parent, env=os.environ | own, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
    printed = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        sys.exit(f"the page's script failed:\n{printed[0]}")
    seconds = max(float(seconds) for each in printed for seconds in re.findall(r"EPOCH ([\d.]+)", each))
    return (IMAGES - warm * batch) / seconds


def edited(text: str, page: str, network: str | None) -> str:
    """The page's script, changed where it could not run here, or is to train another network."""
    if page == "pytorch-ddp-test":
        for gpu, cpu in ON_CPUS:
            text = text.replace(gpu, cpu)
    if network:
        own = f"__import__('importlib').import_module('relay.tasks.{network}').Task().model()"
        if "net = Net()" not in text:
            sys.exit(f"{page}.py has no line that makes its network, in place of which {network} could stand")
        text = text.replace("net = Net()", f"net = {own}")
    return text


def name_of(ours: Mapping[str, Any]) -> str:
    """What a setting of the product is called among the figures."""
    words = [str(value) for value in ours.values() if isinstance(value, str)]
    return "_".join([*words, *(["compiled"] if ours.get("compile") else [])])


def flops_of_a_sample(network: str) -> int:
    """Floating-point operations of a training step for each image of 3 x 32 x 32, as torch counts them."""
    model = importlib.import_module(f"relay.tasks.{network}").Task().model()
    with FlopCounterMode(display=False) as counted:
        model(torch.rand(2, 3, 32, 32)).sum().backward()
    return counted.get_total_flops() // 2


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
    parser.add_argument("--network", help="file of scripts/relay/tasks, for the page's script and the product")
    parser.add_argument("--global-batch-size", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=1.0, help="of the product's runs")
    given = parser.parse_args()
    device, warm = ("cuda", WARM) if given.page == "cifar10-gpu" else ("cpu", 0)
    if device == "cuda" and not torch.cuda.is_available():
        parser.exit(1, "left out: torch sees no GPU here\n")
    text = edited(page_script(f"{given.page}.py", given.pages), given.page, given.network)
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        cifar10 = unpacked("cifar-10-batches-py.tar.xz", folder / "data", given.data)
        (folder / "page.py").write_text(text)

        def page(workers: int = 0) -> float:
            return of_page(given.page, folder / "page.py", cifar10, given.global_batch_size, workers, warm)

        runs: dict[str, Run] = {}
        for ours in OURS[given.page]:
            comparison = ours | {"global_batch_size": given.global_batch_size}
            task = (given.network or "lenet_cifar10").replace("_", "-")
            config = {"task": task, "device": device, "epochs": given.epochs, "comparisons": [comparison]}
            run = workflow_run(config, folder / "results", root=cifar10)
            runs[name_of(ours)] = written(changed(run, observed_steps=0), folder / "results") if warm else run
        pages, speeds = [], {name: [] for name in runs}  # type: dict[str, list[float]]
        for _ in range(given.rounds):
            pages.append(page())
            for name, run in runs.items():
                speeds[name].append(trained(run, folder / "results", after=warm))
        figures: dict[str, Any] = {}
        if device == "cuda":
            figures["page_with_data_workers"] = {}
            for workers in DATA_WORKERS:
                with suppress(SystemExit):  # a small /dev/shm: the row stands without it
                    figures["page_with_data_workers"][workers] = round(page(workers))
    medians = {name: statistics.median(each) for name, each in speeds.items()}
    best = max(medians, key=lambda name: medians[name])
    if given.network:
        figures["teraflops"] = round(medians[best] * flops_of_a_sample(given.network) / 1e12, 2)
    ratios = [ours / page for ours, page in zip(speeds[best], pages, strict=True)]
    report(f"images/s over those of {given.page}.py", ratios, page_images_per_second=round(statistics.median(pages)),
           **{f"{name}_images_per_second": round(speed) for name, speed in medians.items()}, best=best,
           **figures)  # fmt: skip


if __name__ == "__main__":
    main()
