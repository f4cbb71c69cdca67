"""`snakemake libtorch`: a trained model in a real C++ program, its outputs held against Python's."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

import debian_packages
import preloaded
from chain_runs import DROPOUT, Bench, Chain
from plans import ROOT
from relay.base.errors import UserError
from relay.base.files import read_json
from relay.comparison import libtorch as page
from relay.environments import login_node
from relay.libtorch import program
from relay.libtorch.failures import explained
from relay.libtorch.job import SOURCES, run_libtorch
from relay.planning.config import load
from relay.planning.planner import plan
from relay.spec.run import LibTorch, Setting
from relay.spec.site import Site, load_site

pytest_plugins = ["chain_runs", "results_tree"]


def trained(bench: Bench) -> Chain:
    return bench.chain("results", DROPOUT, total_steps=2, evaluate_every_steps=2).train(forked=True)


def found(chain: Chain, sources: Path = SOURCES) -> tuple[int, Path]:
    """The job's exit status, and the file of what it found."""
    settings = {each.name: getattr(chain.run, each.name) for each in fields(Setting)}
    output = chain.results / "libtorch" / "setting-1.json"
    specification = output.with_suffix("") / "libtorch.json"
    LibTorch(**settings, id="setting-1", seed=3).write(specification)
    options: dict[str, Any] = {"start": preloaded.start, "sources": sources, "seconds": 0.05}
    return run_libtorch(specification, chain.run.id, chain.results, output, **options), output


@pytest.mark.slow
def test_outputs_are_pythons_and_both_speeds_are_told(bench: Bench) -> None:
    debian_packages.require()
    chain = trained(bench)
    status, output = found(chain)
    assert status == 0
    told = read_json(output)
    assert told["status"] == "equal", told["reason"]
    assert told["samples"] == chain.run.dataset.test_count
    assert told["samples"] % told["batch"], "the last batch is a smaller one"
    assert told["python_samples_per_second"] > 0
    assert told["cpp_samples_per_second"] > 0
    assert f"{DROPOUT.name} [run-1]: outputs equal" in page.shown(chain.results)


@pytest.mark.long
def test_a_program_that_computes_otherwise_is_told(bench: Bench, tmp_path: Path) -> None:
    """No other test shows that differing outputs are seen."""
    debian_packages.require()
    wrong = tmp_path / "wrong"
    shutil.copytree(SOURCES, wrong)
    text = (wrong / "main.cpp").read_text()
    assert "torch::cat(outputs)" in text
    (wrong / "main.cpp").write_text(text.replace("torch::cat(outputs)", "torch::cat(outputs) + 0.001"))
    status, output = found(trained(bench), wrong)
    assert status == 0
    told = read_json(output)
    assert (told["status"], told["reason"].split(",")[1]) == ("differs", " 1e-05 is allowed")
    assert told["difference"] > 30 * told["limit"]


# As the Alliance's page shows it: no handler was there to catch it.
UNCAUGHT = """terminate called after throwing an instance of 'c10::Error'
  what():  Given groups=1, weight of size [256, 1, 3, 3], expected input[16, 10, 16, 16] to have 1 channels
Exception raised from check_shape_forward at aten/src/ATen/native/Convolution.cpp:496 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7f in libc10.so)"""


def test_the_likely_cause_is_told() -> None:
    told = explained(UNCAUGHT)
    assert told.startswith("Given groups=1, ")
    assert "another shape" in told
    assert "\n" not in told
    assert "frame #" not in told
    assert explained("relay_libtorch: something new\nframe #0: main") == "something new"


TINY = """
cmake_minimum_required(VERSION 3.18)
project(tiny LANGUAGES CXX)
file(WRITE ${CMAKE_BINARY_DIR}/../told "${TORCH_CUDA_ARCH_LIST}")
add_executable(relay_libtorch main.cpp)
"""


def site_with(folder: Path, **keys: Any) -> Site:
    gpus = {"name": None, "device": "cuda", "gpu_name": "a100", "gpus_per_node": 1, "cpus_per_node": 8}
    text = {"name": "mine", "description": "a test", "verified": "here", "partitions": [gpus], **keys}
    (folder / "mine.yaml").write_text(yaml.safe_dump(text))
    return load_site(str(folder / "mine.yaml"), ROOT)


@pytest.mark.slow
def test_the_sites_flags_and_gpus_reach_the_compiler_and_the_linker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the site's file to a program that compiles with the one and is linked with the other."""
    debian_packages.require()
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "CMakeLists.txt").write_text(TINY)
    (tmp_path / "sources" / "main.cpp").write_text("int main() { return STATUS; }")
    flags = {"compile_flags": ["-DSTATUS=7"], "link_flags": ["-Wl,-rpath,$EBROOTCUDA/extras/CUPTI/lib64"]}
    environment = login_node.asked(site_with(tmp_path, libtorch=flags), "torch", ROOT, program="libtorch")
    monkeypatch.setenv("EBROOTCUDA", "/cvmfs/cuda")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = program.program(tmp_path / "sources", program.cmake_options(environment))
    assert subprocess.run([str(made)], check=False).returncode == 7
    assert b"/cvmfs/cuda/extras/CUPTI/lib64" in made.read_bytes()
    assert (tmp_path / "told").read_text() == "8.0"
    assert program.program(tmp_path / "sources", ["-DCMAKE_CXX_FLAGS=-DSTATUS=0"]) != made


def test_a_flag_that_cannot_be_had_on_the_node_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {"link_flags": ["-L$EBROOTCUDA/lib64"]}
    monkeypatch.delenv("EBROOTCUDA", raising=False)
    with pytest.raises(UserError, match=r"libtorch.link_flags: .* the variable EBROOTCUDA is not set there; name the"):
        program.cmake_options(flags)
    monkeypatch.setenv("EBROOTCUDA", "/a; rm -r b")
    with pytest.raises(UserError, match=r"is '-L/a; rm -r b/lib64', which is not allowed; allowed: a flag such as"):
        program.cmake_options(flags)


def test_a_flag_that_a_shell_would_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"libtorch.link_flags\[1\]: '-lb; rm -r c' is not all"):
        site_with(tmp_path, libtorch={"link_flags": ["-L/a", "-lb; rm -r c"]})
    with pytest.raises(UserError, match=r"torch_cuda_arch_list: 'Ampere' is not allowed; .* such as 8.0;9.0"):
        site_with(tmp_path, torch_cuda_arch_list="Ampere")


def test_one_setting_of_each_task_is_run_and_rather_one_of_the_driver_own_stack() -> None:
    several = [{"strategy": "horovod", "devices_per_node": 2}, {"strategy": "ddp", "devices_per_node": 2}]
    made = plan(load({"device": "cpu", "repeats": 2, "comparisons": several}), gpus=0)
    (planned,) = made.libtorch.values()
    assert (planned.strategy.name, planned.shape.world_size) == ("ddp", 1)
    assert made.libtorch_run(planned.id).repeat == 0
