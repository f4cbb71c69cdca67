"""The model of a run's last checkpoint, read without its strategy: whole tensors by name."""

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from relay.base.errors import UserError
from relay.chain.sealed import complete
from relay.run_folder.places import Places
from relay.run_folder.sound_checkpoints import sound
from relay.spec.run import Run

MODEL = "model."  # before the parameters' names in a checkpoint


def final_checkpoint(run: Run, places: Places) -> Path:
    """The sound checkpoint of a run's last step. Raises UserError where there is none, or others could write there."""
    step = run.length.total_steps
    newest = max(complete(places.work), default=0)
    if newest < step and not (places.run / "summary.json").exists():
        began = f"it has come to step {newest} of {step}" if newest else "it was not trained yet"
        recommended = f"the recommended run by sbatch {places.results}/recommendation.sbatch"
        how = f"snakemake {places.run}/summary.json, {recommended}"
        raise UserError(f"run {run.id}: {began}; train it first: {how}")
    if next(sound(places.work, step, step), None) is None:
        raise UserError(
            f"run {run.id}: no sound checkpoint of its last step, {step}, in {places.work}; "
            f"delete results/runs/{run.id} to train it again"
        )
    return places.work / f"step-{step}"


def read_model(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The model's parameters and buffers by name, whole, whichever strategy has divided them. On the CPU.

    Shapes and types are the checkpoint's own, so that nothing is converted.
    """
    metadata = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    model = {
        name.removeprefix(MODEL): torch.empty(tensor.size, dtype=tensor.properties.dtype)
        for name, tensor in metadata.items()
        if name.startswith(MODEL) and isinstance(tensor, TensorStorageMetadata)
    }
    state: dict[str, Any] = {"model": model}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is there: this is one process
        dcp.load(state, checkpoint_id=checkpoint)
    return model
