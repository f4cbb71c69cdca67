"""The final model of a finished run as a safetensors file: plain tensors, which any framework can read."""

import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from relay.chain.sealed import manifest
from relay.export.final import final_checkpoint, read_model
from relay.run_folder import run_chain
from relay.run_folder.places import Places
from relay.spec.run import Run


def export(run_id: str, results: Path, output: Path) -> dict[str, str]:
    """Write the final model of a run, equal to its last checkpoint bit for bit, and return the file's metadata.

    The file is complete or absent. Raises UserError where the last checkpoint is gone, damaged, or not to be trusted.
    """
    places = Places(results, run_id)
    run = Run.read(places.run / "run.json")
    place = final_checkpoint(run, places)
    metadata = {
        "format": "pt",  # of whose tensors they are; Hugging Face's libraries ask for it
        "run": run.id,
        "task": run.task.name,
        "strategy": run.strategy.name,
        "step": str(run.length.total_steps),
        "world_size": str(manifest(place)["world_size"]),
        "precision": run.computation.precision,
        "torch": torch.__version__,
        "generation": str(run_chain.declared(places.run)),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}.partial")
    save_file(read_model(place / "strategy"), partial, metadata=metadata)
    umask = os.umask(0)
    os.umask(umask)
    partial.chmod(0o666 & ~umask)  # safetensors keeps its files to their owner
    partial.replace(output)
    return metadata
