"""`snakemake export`: the final model as safetensors, bit for bit that of the last checkpoint, whoever trained it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from chain_results import result
from chain_runs import DDP, Bench
from damaged import change_a_byte
from relay.base.errors import UserError
from relay.export import model_file
from relay.export.model_file import export

pytest_plugins = ["chain_runs"]

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
    assert set(tensors) == set(saved)
    for name, tensor in saved.items():
        assert tensors[name].dtype == tensor.dtype, name
        assert torch.equal(tensors[name], tensor), name
    wanted = {"run": "run-1", "task": "dropout", "step": str(STEPS), "torch": torch.__version__, "world_size": "2"}
    assert {name: told[name] for name in wanted} == wanted
    assert [path.name for path in output.parent.iterdir()] == [output.name]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_and_nothing_is_written(bench: Bench, tmp_path: Path) -> None:
    chain = bench.chain("results", total_steps=STEPS, evaluate_every_steps=STEPS).train(forked=True)
    change_a_byte(next((chain.work / f"step-{STEPS}").rglob("*.distcp")))
    output = tmp_path / "model.safetensors"
    with pytest.raises(
        UserError, match=r"run run-1: no sound checkpoint of its last step, 3, .*delete results/runs/run-1"
    ):
        export(chain.run.id, chain.results, output)
    assert not output.exists()
