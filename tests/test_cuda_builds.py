"""Builds of torch for CUDA: chosen by what a site declares, pinned, and held to the hashes of the first look."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from plans import ROOT
from relay.base.errors import UserError
from relay.environments import login_node
from relay.environments.locks import lock_of
from relay.planning import stacks
from relay.planning.config import load
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.spec import cuda
from relay.spec.identity import lock_lines
from relay.spec.site import Site, load_site
from small_wheels import lock_entry, simple_index, write_wheel

SITE: dict[str, Any] = {"name": "mine", "description": "a test", "verified": "here"}


def site_of(folder: Path, gpus: list[str] | None = None, driver: str | None = None, **environment: Any) -> Site:
    nodes: dict[str, Any] = {"cpus_per_node": 8, "max_minutes": 60}
    partitions = [
        {"name": gpu, "device": "cuda", "gpu_name": gpu, "gpus_per_node": 2, **nodes} for gpu in (gpus or ["a100"])
    ]
    environment = {"python": sys.executable} | environment
    text = SITE | {"partitions": partitions, "environment": environment, "nvidia_driver": driver}
    (folder / "mine.yaml").write_text(yaml.safe_dump(text))
    return load_site(str(folder / "mine.yaml"), ROOT)


@pytest.mark.parametrize(
    ("gpus", "driver", "build"),
    [
        (["h100"], "550.54.15", "cu126"),  # CUDA 13 needs a newer driver
        (["p100"], None, "cu126"),  # CUDA 13 has no code for it
        (["v100l", "a100"], "575.57", "cu126"),
        (["b200"], "570.86", "cu128"),  # CUDA 12.6 does not know it
    ],
)
def test_auto_takes_the_first_build_that_driver_and_gpus_can_run(
    tmp_path: Path, gpus: list[str], driver: str | None, build: str
) -> None:
    assert site_of(tmp_path, gpus, driver, torch="auto").torch_build == build


@pytest.mark.parametrize(
    ("gpus", "environment", "arch_list"),
    [
        (["h100", "a40", "a100l"], {}, "8.0;8.6;9.0"),
        (["v100", "h100"], {"torch": "cu130"}, "9.0"),  # V100s are skipped there, and nvcc 13 refuses 7.0
        (["somebody-s"], {"torch": "cu128"}, "7.5;8.0;8.6;8.9;9.0;10.0;12.0"),
    ],
)
def test_cuda_code_is_built_for_the_sites_gpus_alone(
    tmp_path: Path, gpus: list[str], environment: dict[str, Any], arch_list: str
) -> None:
    site = site_of(tmp_path, gpus, **environment)
    assert site.cuda_arch_list == arch_list
    if site.torch_build == "cuda" and site.environment.wheels_from == "download":
        assert login_node.asked(site, "deepspeed", ROOT)["arch_list"] == arch_list


def test_auto_without_a_common_build_is_refused(tmp_path: Path) -> None:
    told = (
        r"environment.torch: auto is not allowed: no build of torch is for all GPUs \(blackwell, volta; driver None\)"
    )
    with pytest.raises(UserError, match=told):
        site_of(tmp_path, ["v100", "b200"], torch="auto")


def planned(site: Site) -> Plan:
    config = load({"repeats": 1, "comparisons": [{"strategy": "single_gpu"}]})
    return plan(config, site=site, speeds=Path("none"))


def test_a_build_that_does_not_fit_is_a_reason_to_skip(tmp_path: Path) -> None:
    site = site_of(tmp_path, ["v100"], mode="wheels", torch="cuda")
    (skipped,) = planned(site).skipped
    told = r"build cuda \(CUDA 13.0\) has no code for .* volta; allowed: cu126, cu124, cu118"
    assert re.search(told, "; ".join(skipped.reasons))


def test_the_oldest_driver_of_a_cuda_is_new_enough() -> None:
    assert cuda.problem("cu130", "hopper", "580.65.06") is None
    assert "needs NVIDIA's driver 580 or newer" in (cuda.problem("cu130", "hopper", "575.57") or "")


# From PyTorch's own index: here one that is served from a folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose stack is torch and one package, as the registry has them; the indexes of the builds."""
    registry = tmp_path / "registry"
    helper = write_wheel(registry, "helper", "1.0")
    torch = [write_wheel(registry, "torch", "2.13.0"), write_wheel(registry, "torchvision", "0.28.0")]
    write_wheel(registry, "helper", "1.1")
    for build, version, vision in (("cu126", "2.13.0", "0.28.0"),):
        of_build = tmp_path / build
        write_wheel(of_build, "torch", f"{version}+{build}", "helper", f"library-{build}>=1")
        write_wheel(of_build, "torchvision", f"{vision}+{build}", f"torch=={version}")
        write_wheel(of_build, f"library-{build}", "1.2")
        simple_index(of_build)
    simple_index(registry)
    root = tmp_path / "project"
    (root / "envs").mkdir(parents=True)
    (root / "envs" / "torch.txt").write_text("".join(map(lock_entry, [helper, *torch])))
    (root / "envs" / "torch.in").touch()
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", registry.as_uri())
    monkeypatch.setattr(cuda, "index", lambda build: (tmp_path / build).as_uri())
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(login_node, "ROOT", root)
    return root


def found(project: Path, site: Site) -> str:
    return stacks.find(load({}), site, project, {"torch"}, record=True).plain


@pytest.mark.slow
def test_a_build_is_pinned_and_recorded_with_the_locks_other_versions(project: Path, tmp_path: Path) -> None:
    lock = lock_of(project, found(project, site_of(tmp_path, torch="cu126")))
    vision = cuda.BUILDS["cu126"].torchvision
    pins = ["helper==1.0", "library-cu126==1.2", "torch==2.13.0+cu126", f"torchvision=={vision}+cu126"]
    assert lock_lines(lock) == pins
    for wheel in (tmp_path / "cu126").glob("*.whl"):
        assert lock_entry(wheel) in lock.read_text()
