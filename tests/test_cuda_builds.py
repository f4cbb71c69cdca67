"""Builds of torch for CUDA: chosen by what a site declares, pinned, and held to the hashes of the first look."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from plans import planned
from refusals import refusal
from relay.spec import cuda
from relay.spec.site import Site
from slurm_runs import site_in


def site_of(folder: Path, gpus: list[str] | None = None, driver: str | None = None, **environment: Any) -> Site:
    nodes: dict[str, Any] = {"device": "cuda", "gpus_per_node": 2, "cpus_per_node": 8, "max_minutes": 60}
    partitions = [{"name": gpu, "gpu_name": gpu, **nodes} for gpu in (gpus or ["a100"])]
    environment = {"python": sys.executable} | environment
    return site_in(folder, partitions=partitions, environment=environment, nvidia_driver=driver)


@pytest.mark.parametrize(
    ("gpus", "driver", "build"),
    [
        (["h100"], "550.54.15", "cu126"),  # CUDA 13 needs a newer driver
        (["p100"], None, "cu126"),  # CUDA 13 has no code for it
        (["v100l", "a100"], "575.57", "cu126"),
        (["b200"], "570.86", "cu128"),  # CUDA 12.6 does not know it
    ],
)
def test_auto_takes_the_first_build_that_driver_and_gpus_can_run(tmp_path: Path, gpus, driver, build) -> None:
    assert site_of(tmp_path, gpus, driver, torch="auto").torch_build == build


def test_auto_without_a_common_build_is_refused(tmp_path: Path) -> None:
    told = "environment.torch: auto is not allowed: no build of torch is for all GPUs (blackwell, volta; driver None)"
    assert told in refusal(site_of, tmp_path, ["v100", "b200"], torch="auto")


def test_a_build_that_does_not_fit_is_a_reason_to_skip(tmp_path: Path) -> None:
    site = site_of(tmp_path, ["v100"], mode="wheels", torch="cuda")
    (skipped,) = planned({"strategy": "single_gpu"}, site=site).skipped
    told = r"build cuda \(CUDA 13.0\) has no code for .* volta; allowed: cu126, cu124, cu118"
    assert re.search(told, "; ".join(skipped.reasons))


def test_the_oldest_driver_of_a_cuda_is_new_enough() -> None:
    assert cuda.problem("cu130", "hopper", "580.65.06") is None
    assert "needs NVIDIA's driver 580 or newer" in (cuda.problem("cu130", "hopper", "575.57") or "")
