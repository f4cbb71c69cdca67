"""`snakemake libtorch` and `snakemake export`: a trained model in a real C++ program, and as safetensors."""

import re
import shutil
import subprocess
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import debian_packages
import preloaded
from chain_results import assert_same, result
from chain_runs import DDP, DROPOUT, Bench, Chain
from damaged import change_a_byte
from plans import ROOT
from refusals import refusal
from relay.base.files import read_json, write_json
from relay.environments import login_node
from relay.export import model_file
from relay.export.model_file import export
from relay.libtorch import job, program, record
from relay.libtorch.job import SOURCES, run_libtorch
from relay.spec.run import LibTorch, Setting
from slurm_runs import PARTITIONS, site_in


def trained(bench: Bench) -> Chain:
    return bench.chain("results", DROPOUT, total_steps=2, evaluate_every_steps=2).train(forked=True)


def found(chain: Chain, sources: Path | None = SOURCES, run: bool = True) -> tuple[int, Path]:
    """The job's exit status, and the file of what it found. Without a run: the example."""
    settings = {each.name: getattr(chain.run, each.name) for each in fields(Setting)}
    output = chain.results / "libtorch" / "setting-1.json"
    specification = output.with_suffix("") / "libtorch.json"
    LibTorch(**settings, id="setting-1", seed=3).write(specification)
    options: dict[str, Any] = {"start": preloaded.start, "sources": sources, "seconds": 0.05}
    return run_libtorch(specification, chain.run.id if run else None, chain.results, output, **options), output


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
    assert f"{DROPOUT.name} [run-1]: outputs equal" in record.in_cpp_lines(chain.results)


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


@pytest.mark.long
def test_the_smallest_program_needs_no_trained_run(bench: Bench) -> None:
    """No other test builds it."""
    debian_packages.require()
    status, output = found(bench.chain("results", DROPOUT, total_steps=2), None, run=False)
    assert status == 0
    assert read_json(output)["said"].endswith("no GPU: 2 x 3 ones add up to 6")


def test_a_folder_with_the_outputs_name_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(spec: Path, role: str, results: Path, findings: Path, *_: Any, **__: Any) -> int:
        write_json(findings, {"status": "ran"})
        return 0

    monkeypatch.setattr(job, "started", started)
    (tmp_path / "found").mkdir()
    assert run_libtorch(tmp_path / "spec.json", None, tmp_path, tmp_path / "found.json") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found", "found.json"]


def test_libraries_that_a_program_lacks_are_named_with_their_modules(tmp_path: Path, monkeypatch) -> None:
    debian_packages.require()
    lost = [f"lib{name}.so" for name in ("cudnn", "absl_base", "odd")]
    (tmp_path / "main.cpp").write_text("int main() {}")
    gcc = ["g++", "-Wl,--no-as-needed", "main.cpp", "-o"]
    for library in lost:
        subprocess.run([*gcc, library, "-shared", f"-Wl,-soname,{library}"], cwd=tmp_path, check=True)
    subprocess.run([*gcc, "main", *lost], cwd=tmp_path, check=True)
    for library in lost:
        (tmp_path / library).unlink()
    monkeypatch.setenv("LOADEDMODULES", "StdEnv/2023:abseil/20230125.3")
    told = refusal(program.said, tmp_path / "main")
    assert "libcudnn.so (the module cudnn brings it), libabsl_base.so (abseil/20230125.3 is loaded" in told
    assert "libodd.so (look for its module with `module spider`)" in told


TINY = """
cmake_minimum_required(VERSION 3.18)
project(tiny LANGUAGES CXX)
file(WRITE ${CMAKE_BINARY_DIR}/../told "${TORCH_CUDA_ARCH_LIST}")
add_executable(relay_libtorch main.cpp)
"""


@pytest.mark.slow
def test_the_sites_flags_and_gpus_reach_the_compiler_and_the_linker(tmp_path: Path, monkeypatch) -> None:
    """From the site's file to a program that compiles with the one and is linked with the other."""
    debian_packages.require()
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "CMakeLists.txt").write_text(TINY)
    (tmp_path / "sources" / "main.cpp").write_text("int main() { return STATUS; }")
    flags = {"compile_flags": ["-DSTATUS=7"], "link_flags": ["-Wl,-rpath,$EBROOTCUDA/extras/CUPTI/lib64"]}
    site = site_in(tmp_path, libtorch=flags, environment={}, partitions=[PARTITIONS[1] | {"gpu_name": "a100"}])
    environment = login_node.environment_of(site, "torch", ROOT, program="libtorch")
    monkeypatch.setenv("EBROOTCUDA", "/cvmfs/cuda")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = program.program(tmp_path / "sources", program.cmake_options(environment))
    assert subprocess.run([str(made)], check=False).returncode == 7
    assert b"/cvmfs/cuda/extras/CUPTI/lib64" in made.read_bytes()
    assert (tmp_path / "told").read_text() == "8.0"
    assert program.program(tmp_path / "sources", ["-DCMAKE_CXX_FLAGS=-DSTATUS=0"]) != made


# Export: the final model is bit for bit that of the last checkpoint, whoever trained it


STEPS = 3


@pytest.mark.slow
def test_a_divided_model_is_whole_and_equal_bit_for_bit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = bench.chain("results", total_steps=STEPS, evaluate_every_steps=STEPS, **(DDP | {"strategy": "fsdp"}))
    chain.train(forked=True)
    output = bench.folder / "exported" / "model.safetensors"
    real, named = model_file.save_file, []

    def save_file(*given: Any, **further: Any) -> None:
        real(*given, **further)
        named.append(output.exists())

    monkeypatch.setattr(model_file, "save_file", save_file)
    export(chain.run.id, chain.results, output)
    assert named == [False]  # nobody reads half of it
    saved = result(chain)["state"]["model"]
    with safe_open(output, "pt") as file:
        told, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert_same(dict(sorted(tensors.items())), dict(sorted(saved.items())))
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {name: saved[name].dtype for name in saved}
    wanted = {"run": "run-1", "task": "dropout", "step": str(STEPS), "torch": torch.__version__, "world_size": "2"}
    assert {name: told[name] for name in wanted} == wanted
    assert [path.name for path in output.parent.iterdir()] == [output.name]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_and_nothing_is_written(bench: Bench, tmp_path: Path) -> None:
    chain = bench.chain("results", total_steps=STEPS, evaluate_every_steps=STEPS).train(forked=True)
    change_a_byte(next((chain.work / f"step-{STEPS}").rglob("*.distcp")))
    output = tmp_path / "model.safetensors"
    told = r"run run-1: no sound checkpoint of its last step, 3, .*delete results/runs/run-1"
    assert re.search(told, refusal(export, chain.run.id, chain.results, output))
    assert not output.exists()
