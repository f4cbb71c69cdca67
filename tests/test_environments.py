"""What the modes of a site's environment ask for, and what Snakemake makes of it: real environment modules."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import mini_slurm
from living import well
from mini_slurm import MiniSlurm
from refusals import refusal
from relay.base.errors import UserError
from relay.base.files import sha256
from relay.environments import login_node, node, wheelhouse
from relay.environments.locks import read
from relay.spec import cuda
from snakemake_calls import called
from tiny_stack import ROOT, told


def site(mode: str, **given: Any) -> Any:
    """As much of a site as `relay.environments.login_node` reads."""
    keys = {"wheels_from": "download", "packages": {}, "conda": {}, "image": None, "python": None, "torch": "cpu"}
    declared = SimpleNamespace(mode=mode, **{**keys, **given})
    declared.source = "site" if declared.wheels_from == "site" else mode
    further = {"stack_modules": {}, "torch_build": declared.torch, "cuda_arch_list": None}
    return SimpleNamespace(file="mine.yaml", modules=["a/1", "b/2"], environment=declared, **further)


def test_what_each_mode_asks_for(tmp_path: Path) -> None:
    def asked(*arguments: Any, **options: Any) -> dict[str, Any]:
        found = login_node.environment_of(site(*arguments, **options), "torch", ROOT)
        json.dumps(found)
        return found

    assert asked("wheels")["wheelhouse"] == str(wheelhouse.order(ROOT, "torch", "cpu").folder)
    assert asked("wheels")["python"] == wheelhouse.base_python()
    own = asked("wheels", wheels_from="site", packages={"torch": ["torch", "numpy"]})
    assert (own["site_wheels"], own["packages"], own["wheelhouse"]) == (True, ["torch", "numpy"], None)
    assert asked("conda", conda={"torch": "pytorch"})["conda"] == "pytorch"
    assert asked("conda", conda={"torch": "envs/torch-cu128.yaml"})["conda"] == str(ROOT / "envs/torch-cu128.yaml")
    assert asked("conda", conda={"torch": str(tmp_path)})["conda"] == str(tmp_path)
    assert asked("apptainer", image="torch.sif")["image"] == "torch.sif"
    assert login_node.environment_of(None, "torch", ROOT, device="cuda") | {"lock_sha256": ""} == told(
        mode="current", stack="torch", build=None, python=None, wheelhouse=None, conda=None, nvidia=True, lock_sha256=""
    )


def test_what_the_site_lacks_is_one_line() -> None:
    with pytest.raises(UserError, match=r"mine\.yaml: environment\.packages: nothing for stack 'torch'; add torch: …"):
        login_node.environment_of(site("wheels", wheels_from="site"), "torch", ROOT)
    with pytest.raises(UserError, match=r"mine\.yaml: environment\.conda: nothing for stack 'torch'"):
        login_node.conda_of(site("conda", conda={"lightning": "x"}), "torch", ROOT)
    with pytest.raises(UserError, match=r"environment\.conda\.torch: 'envs/none\.yaml': no such file or folder"):
        login_node.conda_of(site("conda", conda={"torch": "envs/none.yaml"}), "torch", ROOT)


OLD_CONDA = """#!/bin/sh
echo "conda $*" >> "$(dirname "$0")/calls"
case "$1 $2" in
    "env create") mkdir -p "$7/bin" && cp -P {python} "$7/bin/python" && mkdir "$7/conda-meta" &&
        touch "$7/conda-meta/a.json" && test ! -e {broken} ;;
    "--version "*) echo conda 4.10.1 ;;
    "shell.posix activate")
        case "$3" in /*) place="$3" ;; *) place="{prefix}/envs/$3" ;; esac
        test -d "$place" || {{ echo "EnvironmentNameNotFound: $3" >&2; exit 1; }}
        echo "PATH='$place/bin:$PATH'; export PATH; test -z \"\\$CONDA_SHLVL\" || PATH=; export CONDA_SHLVL=1" ;;
    *) exit 1 ;;
esac
"""


@pytest.fixture
def old_conda(tmp_path: Path) -> Path:
    """The folder of a stand-in for conda 4.10, which is older than what Snakemake asks for; conda's own is not here."""
    prefix = tmp_path / "conda"
    (prefix / "bin").mkdir(parents=True)
    program = prefix / "bin/conda"
    python = Path(wheelhouse.base_python()).resolve()
    program.write_text(OLD_CONDA.format(prefix=prefix, python=python, broken=tmp_path / "broken"))
    program.chmod(0o755)
    return program.parent


def test_a_file_creates_an_environment_once_on_the_login_node(tmp_path: Path, monkeypatch, old_conda: Path) -> None:
    monkeypatch.chdir(tmp_path)
    ours, lock = site("conda", conda={"torch": "envs/torch-cu118.yaml"}), ROOT / "envs/torch.txt"
    asked = login_node.environment_of(ours, "torch", ROOT)
    file, folder = ROOT / "envs/torch-cu118.yaml", Path(asked["conda_folder"])
    assert folder.parent == tmp_path / "results/conda"
    assert folder.name == f"torch-cu118-{sha256(file)[:12]}"  # another file is another environment
    with pytest.raises(UserError, match=r"-cu118\.yaml: this machine has no `conda` .* on a node: `conda env create"):
        login_node.prepare(asked, lock)
    monkeypatch.setenv("PATH", f"{old_conda}:{os.environ['PATH']}")
    (tmp_path / "broken").touch()
    assert "conda could not create the environment" in refusal(login_node.prepare, asked, lock)
    with pytest.raises(UserError, match="has no bin/python"):
        node.interpreter(asked | {"modules": [], "conda_folder": str(tmp_path)}, tmp_path)
    (tmp_path / "broken").unlink()
    for _ in range(2):
        recorded = login_node.prepare(asked, lock)
    assert recorded["installed"]["torch"] is None  # what there is beside the lock is told
    calls = (old_conda / "calls").read_text().splitlines()
    one = f"conda env create --quiet --file {file} --prefix {folder}."
    assert [call.startswith(one) for call in calls] == [True] * 2  # the broken one, and this one
    assert node.interpreter(asked | {"modules": []}, tmp_path) == [f"{folder}/bin/python"]
    assert login_node.lost(asked) == ""
    (folder / "conda-meta" / "a.json").unlink()  # by a cleaner of old files
    assert login_node.lost(asked) == f"is no longer true: files are gone from {folder}"
    (tmp_path / "broken").touch()
    assert "could not create" in refusal(login_node.prepare, asked, lock)
    assert (folder / "bin/python").exists()  # jobs may use it
    (tmp_path / "broken").unlink()
    login_node.prepare(asked, lock)
    assert login_node.lost(asked) == ""
    assert len((old_conda / "calls").read_text().splitlines()) == 4
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with pytest.raises(UserError, match=r"environment\.conda: 'mine' is not active on node .* is still the driver's; "):
        node.interpreter({"mode": "conda", "conda": "mine", "modules": []}, tmp_path)


def test_snakemake_has_to_be_told_to_load_modules() -> None:
    """Else every job would fail; so nothing is submitted."""
    with_modules = "--software-deployment-method env-modules"
    for mode in ("modules", "wheels", "current", "conda"):
        (line,) = login_node.undeployed(site(mode), set())
        assert line.startswith("mine.yaml: modules: a/1, b/2: Snakemake has to load them, and was not told to; add ")
        assert line.endswith(with_modules)
        assert login_node.undeployed(site(mode), {"env-modules"}) == []
    assert login_node.undeployed(None, set()) == []
    without = site("current")
    without.modules = []
    assert login_node.undeployed(without, set()) == []
    without.stack_modules = {"deepspeed": ["cuda"]}
    assert login_node.undeployed(without, set())[0].startswith("mine.yaml: modules: of stacks: ")


def test_the_conda_twin_has_the_locks_pins() -> None:
    locks = [ROOT / "envs" / name for name in ("torch.txt", "torch-cuda.txt")]
    pins = [pin.requirement() for lock in locks for pin in read(lock)]
    assert yaml.safe_load((ROOT / "envs/torch.yaml").read_text())["dependencies"][-1]["pip"] == pins


@pytest.mark.parametrize("build", [build for build, made in cuda.BUILDS.items() if made.torch])
def test_the_builds_for_other_cudas_come_from_their_index(build: str) -> None:
    twin = yaml.safe_load((ROOT / f"envs/torch-{build}.yaml").read_text())
    pip = twin["dependencies"][-1]["pip"]
    assert pip[0] == f"--index-url {cuda.index(build)}"
    assert pip[1:] == [f"torch=={cuda.BUILDS[build].torch}", f"torchvision=={cuda.BUILDS[build].torchvision}"]
    names = {re.split("[>=]", word)[0] for word in [*pip[1:], *twin["dependencies"]] if isinstance(word, str)}
    asked = {re.split("==", line)[0] for line in (ROOT / "envs/torch.in").read_text().splitlines() if line[:1] != "#"}
    assert asked <= names


# What Snakemake makes of it


@dataclass
class Workflow:
    """The toy workflow in a folder of its own, with the site's file beside it."""

    folder: Path

    def site(self, environment: dict[str, Any], modules: list[str], *of_the_stack: str) -> None:
        partition = {"name": None, "device": "cpu", "cpus_per_node": 8, "max_minutes": 60}
        text = {"name": "site", "description": "a test", "verified": "here", "partitions": [partition]}
        text |= {"environment": environment, "modules": modules, "stack_modules": {"torch": list(of_the_stack)}}
        (self.folder / "site.yaml").write_text(yaml.safe_dump(text))

    def command(self, *arguments: str) -> list[str]:
        given = ["--directory", str(self.folder), "--config", f"root={ROOT}", f"site={self.folder}/site.yaml"]
        return ["--snakefile", f"{ROOT}/tests/environment_workflow/Snakefile", *arguments, *given]

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """On this machine: the exit status, and all that was printed and logged."""
        variables = {name: value for name, value in os.environ.items() if name != "BASH_ENV"} | environment
        status, printed = called(["--cores", "1", *self.command(*arguments)], ROOT, variables)
        return status, printed + self.log()

    def log(self) -> str:
        log = self.folder / "job.log"
        return log.read_text() if log.exists() else ""

    def found(self) -> list[str]:
        """The interpreter that the job ran with, the modules that were loaded, the node's name."""
        return (self.folder / "found.txt").read_text().split()


@pytest.fixture
def workflow(tmp_path: Path) -> Workflow:
    return Workflow(tmp_path)


def python_in(folder: Path) -> Path:
    """A Python that is not the driver's."""
    folder.mkdir(parents=True)
    python = folder / "python"
    python.symlink_to(wheelhouse.base_python())
    return python


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, str]:
    """Real environment modules, one of them `torch/2.0` with a Python; the variables of a user's shell."""
    mini_slurm.require({"modulecmd": "environment-modules"})
    python = python_in(tmp_path / "theirs")
    (tmp_path / "modulefiles/torch").mkdir(parents=True)
    (tmp_path / "modulefiles/torch/2.0").write_text(f"#%Module1.0\nprepend-path PATH {python.parent}\n")
    (tmp_path / "modulefiles/cuda").mkdir()
    (tmp_path / "modulefiles/cuda/12.2").write_text("#%Module1.0\n")
    # As on a cluster: the module command is there in a shell that is no login shell.
    return {"BASH_ENV": "/usr/share/modules/init/bash", "MODULEPATH": str(tmp_path / "modulefiles")}


@pytest.mark.slow
def test_modules_in_a_slurm_job(workflow: Workflow, modules: dict[str, str], cluster: MiniSlurm) -> None:
    workflow.site({"mode": "modules"}, ["torch/2.0"], "cuda/12.2")  # those of the stack come last
    options = ["--executor", "slurm", "--jobs", "1", "--slurm-status-command", "squeue", "--slurm-no-account"]
    options += ["--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "20"]
    options += ["--software-deployment-method", "env-modules"]
    command = [sys.executable, f"{ROOT}/tests/support/fast_snakemake.py", *options, *workflow.command(), "slurm=yes"]
    done = cluster.run(*command, check=False, env=modules, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout + workflow.log()
    assert workflow.found() == [str(workflow.folder / "theirs/python"), "torch/2.0:cuda/12.2", "c1"]


@pytest.mark.slow
def test_a_modules_conda_is_activated_on_the_node(workflow: Workflow, modules: dict[str, str], old_conda: Path) -> None:
    """The driver has no conda, and the node's is older than the one that Snakemake asks for."""
    place = old_conda.parent / "envs/pytorch"
    python = python_in(place / "bin")
    (workflow.folder / "modulefiles/anaconda3").write_text(f"#%Module1.0\nprepend-path PATH {old_conda}\n")
    workflow.site({"mode": "conda", "conda": {"torch": str(place)}}, ["anaconda3"])
    # The driver's own environment may be active: it is not to be put in its place.
    variables = modules | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "CONDA_SHLVL": "1"}
    well(workflow.run("--software-deployment-method", "env-modules", **variables))
    assert workflow.found()[:2] == [str(python), "anaconda3"]
    assert (old_conda / "calls").read_text() == f"conda shell.posix activate {place}\n"  # Snakemake asks it nothing
