"""The product beside the Alliance's own scripts, on real CIFAR-10, each started as a user's job is, in turns.

--page cifar10-cpu         the script for CPUs as it stands, batch 512, with two threads
--page pytorch-ddp-test    the script for DistributedDataParallel, batch 256 in each of two processes, with gloo in
                           place of NCCL, and without its words for GPUs
--page cifar10-gpu         the script for one GPU as it stands, without data workers; its speed with some is told too.
                           `--network` puts one of the product's networks in the place of its own

Of the page's script the time of its whole epoch counts, from the first batch that is asked for to the last; of the
product's job the time of all steps that it recorded. On a GPU both begin after `WARM` steps, in which kernels are
chosen and networks compiled, and the page's ends `PART` steps later: its later steps take as long. The product's speed
in each setting is told. Settings for which `--seconds` are too few are left out, and named.
"""

import argparse
import importlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from common import DATA, PAGES, ROOT, page_script, report, trained, unpacked, workflow_run, written
from torch.utils.flop_counter import FlopCounterMode

from relay.launch.command_lines import free_port
from relay.spec.run import Run, changed

IMAGES, BATCH = 50_000, 512
MADE_UP = Path(__file__).resolve().parent / "made_up.py"
BESIDE = ROOT / "scripts/relay/script/beside"  # torchvision beside a torch of another index
ON_CPUS = (
    ("nccl", "gloo"),
    ("torch.cuda.device_count()", "int(os.environ['SLURM_NTASKS_PER_NODE'])"),
    ("torch.cuda.set_device(current_device)", "pass"),
    (", device_ids=[current_device]", ""),
    (".cuda()", ""),
)
WARM, PART = 20, 40  # steps, on a GPU
SECONDS = 60.0
# Runs a script, and prints how long its loader was asked for batches, from which one to which, and their number. Where
# the data are made up, torchvision's own dataset has random pixels.
TIMED = """
import numpy, runpy, sys, time, torch, torchvision
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
        if number + 1 == last:
            break
    print(f"EPOCH {now() - began:.6f} {number + 1 - warm}", flush=True)
DataLoader.__iter__ = timed
class MadeUp(torchvision.datasets.CIFAR10):
    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        self.transform, self.target_transform = transform, target_transform
        self.data = numpy.random.default_rng(1).integers(256, size=(50_000, 32, 32, 3), dtype=numpy.uint8)
        self.targets = numpy.random.default_rng(2).integers(10, size=50_000).tolist()
del sys.argv[0]
warm, last, made_up = (int(sys.argv.pop(0)) for _ in range(3))
if made_up:
    torchvision.datasets.CIFAR10 = MadeUp
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# What of the product is compared with each page; the best of these counts.
OURS: dict[str, list[dict[str, Any]]] = {
    "cifar10-cpu": [{"strategy": "cpu", "cpus_per_task": 2}, {"strategy": "ddp", "devices_per_node": 2}],
    "pytorch-ddp-test": [{"strategy": "ddp", "devices_per_node": 2}],
    "cifar10-gpu": [
        {"strategy": "single_gpu", "precision": precision, "compile": compiled}
        for precision, compiled in (("tf32", False), ("bf16", False), ("bf16", True), ("fp32", False), ("tf32", True))
    ],
}
DATA_WORKERS = 8


def of_page(
    page: str, script: Path, folder: Path, batch: int, workers: int = 0, *, part: tuple[int, int], made_up: bool
) -> float:
    """Images per second of a part of an epoch of the page's script, by the longest of its processes.

    `part`: after how many steps it begins, and ends (0: at the epoch's end). `folder` is where the script runs.
    """
    processes = 2 if page == "pytorch-ddp-test" else 1
    words = [f"--batch_size={batch // processes}", f"--num_workers={workers}"]
    if processes > 1:
        words += ["--init_method", f"tcp://127.0.0.1:{free_port()}", "--world_size=2", "--max_epochs=1"]
    started = []
    for rank in range(processes):
        slurm = {"CPUS_PER_TASK": 2 // processes, "NTASKS_PER_NODE": processes, "NODEID": 0, "LOCALID": rank}
        own = {f"SLURM_{name}": str(value) for name, value in slurm.items()}
        own |= {"OMP_NUM_THREADS": str(2 // processes), "PYTHONPATH": f"{BESIDE}:{ROOT}/scripts"}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", TIMED, *map(str, part), str(int(made_up)), script, *words],
                cwd=folder, env=os.environ | own, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
    printed = [each.communicate()[0] for each in started]
    if any(each.returncode for each in started):
        sys.exit(f"the page's script failed:\n{printed[0]}")
    epochs = [each for text in printed for each in re.findall(r"EPOCH ([\d.]+) (\d+)", text)]
    images = int(epochs[0][1]) * batch if part[1] else IMAGES - part[0] * batch
    return images / max(float(seconds) for seconds, _ in epochs)


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
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that the first round may take, on a GPU")
    parser.add_argument("--made-up", action="store_true", help="random images of CIFAR-10's shape")
    given = parser.parse_args()
    began = time.monotonic()
    device, warm = ("cuda", WARM) if given.page == "cifar10-gpu" else ("cpu", 0)
    if device == "cuda" and not torch.cuda.is_available():
        parser.exit(1, "left out: torch sees no GPU here\n")
    text = edited(page_script(f"{given.page}.py", given.pages), given.page, given.network)
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        cifar10 = None if given.made_up else unpacked("cifar-10-batches-py.tar.xz", folder / "data", given.data)
        (folder / "page.py").write_text(text)

        def page(workers: int = 0) -> float:
            part = (warm, warm + PART if warm else 0)
            batch, made_up = given.global_batch_size, given.made_up
            return of_page(given.page, folder / "page.py", folder, batch, workers, part=part, made_up=made_up)

        runs: dict[str, Run] = {}
        network = given.network or "lenet_cifar10"
        own = {"task": str(MADE_UP), "task_options": {"network": network}}
        of_task = own if given.made_up else {"task": network.replace("_", "-")}
        for ours in OURS[given.page]:
            comparison = ours | {"global_batch_size": given.global_batch_size}
            config = {**of_task, "device": device, "epochs": given.epochs, "comparisons": [comparison]}
            run = workflow_run(config, folder / "results", root=cifar10)
            runs[name_of(ours)] = written(changed(run, observed_steps=0), folder / "results") if warm else run
        pages, speeds = [], {}  # type: tuple[list[float], dict[str, list[float]]]
        figures: dict[str, Any] = {}
        for number in range(given.rounds):
            pages.append(page())
            if device == "cuda" and not number:
                with suppress(SystemExit):  # a small /dev/shm: the row stands without it
                    figures["page_with_data_workers"] = {DATA_WORKERS: round(page(DATA_WORKERS))}
            longest = 0.0
            for name, run in [*runs.items()]:
                started = time.monotonic()
                if device == "cuda" and speeds and not number and started - began + longest > given.seconds:
                    figures.setdefault("left_out", []).append(name)
                    runs.pop(name)
                    continue
                speeds.setdefault(name, []).append(trained(run, folder / "results", after=warm))
                longest = max(longest, time.monotonic() - started)
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
