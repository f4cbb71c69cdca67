"""From a prepared dataset to global batches: two ways to feed them, the same samples in the same order."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from relay.base.errors import UserError
from relay.datasets.manifest import Split as SplitName
from relay.datasets.manifest import load_split, verify
from relay.process import cpus
from relay.process.interruption import SIGNALS
from relay.spec.catalogue import TaskSpec, magnification

Batch = tuple[torch.Tensor, torch.Tensor]


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> torch.Tensor:
    """The permutation of an epoch. Seed and epoch are mixed through SeedSequence, so that no two pairs collide."""
    mixed = int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0] >> 1)
    return torch.randperm(count, generator=torch.Generator().manual_seed(mixed))


def batch_indices(count: int, global_batch_size: int, seed: int, step: int) -> torch.Tensor:
    """The samples of a step's global batch, (global_batch_size,) int64: a pure function of seed and step.

    The position in training is therefore one integer, and resuming needs no loader's state. Every epoch is a new
    permutation; its last, partial batch is left out.
    """
    epoch, position = divmod(step, count // global_batch_size)
    return _order(count, seed, epoch)[position * global_batch_size :][:global_batch_size]


class Split:
    """One split of a prepared dataset, shaped for a task's network.

    `inputs` stay uint8 (images, a text's bytes) or float32 (vectors) until a batch is made of them; `normalise` is then
    the same arithmetic whichever way the batch came.
    """

    def __init__(self, directory: Path, name: SplitName, task: TaskSpec) -> None:
        """Maps the files. Raises UserError where the dataset is damaged or does not fit the task's network."""
        self.inputs, self.targets = load_split(directory, name)
        manifest = verify(directory)
        self.images, self.tokens = manifest.kind == "images", manifest.kind == "text"
        self.repeats, self.magnification = 1, 1
        if self.images:
            # Grey images become three channels, small ones are magnified by a whole factor: exact in both loaders.
            self.repeats, self.magnification = magnification(tuple(self.inputs.shape[1:]), task)
            assert manifest.mean is not None  # images always have both
            assert manifest.std is not None
            self.mean = torch.tensor(manifest.mean).repeat(self.repeats).view(-1, 1, 1)
            self.std = torch.tensor(manifest.std).repeat(self.repeats).view(-1, 1, 1)
        elif self.inputs.shape[1:] != task.input_shape:
            raise UserError(
                f"task {task.name}: the network takes {task.input_shape}, the dataset has {self.inputs.shape[1:]}"
            )

    def __len__(self) -> int:
        return len(self.targets)

    def enlarge(self, images: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) uint8 images as the network wants them, still uint8."""
        images = images.repeat(1, self.repeats, 1, 1)
        return images.repeat_interleave(self.magnification, -1).repeat_interleave(self.magnification, -2)

    def normalise(self, inputs: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """uint8 images to zero mean and unit deviation, computed in float32, then cast; vectors are only cast.

        Tokens are int64 whatever the training's type.
        """
        if self.tokens:
            return inputs.long()
        if self.images:
            mean, std = self._moments(inputs.device)
            inputs = inputs.to(torch.float32).div_(255).sub_(mean).div_(std)
        return inputs.to(dtype)

    def _moments(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation on that device, brought there once: a copy in every step would wait for the device."""
        if device != self.mean.device:
            self.mean, self.std = self.mean.to(device), self.std.to(device)
        return self.mean, self.std


class Resident:
    """The whole split as one tensor on the device; a batch is an indexing and a normalisation."""

    def __init__(self, split: Split, device: torch.device, dtype: torch.dtype) -> None:
        self.split, self.device, self.dtype = split, device, dtype
        inputs = torch.from_numpy(np.array(split.inputs))
        self.inputs = (split.enlarge(inputs) if split.images else inputs).to(device)
        self.targets = torch.from_numpy(np.array(split.targets)).to(device)

    def fetch(self, indices: torch.Tensor) -> Batch:
        """Inputs (n, *input_shape) and targets of these samples, on the device; for text both are int64 (n, length)."""
        if self.device.type == "cuda":  # from pinned memory, so that the loop need not wait for the device
            indices = indices.pin_memory().to(self.device, non_blocking=True)
        return self.split.normalise(self.inputs[indices], self.dtype), self.targets[indices]

    def batches(self, index_lists: Iterable[torch.Tensor]) -> Iterator[Batch]:
        """A batch for each list of samples, in order."""
        return (self.fetch(indices) for indices in index_lists)


class _Samples(Dataset[Batch]):
    """Sample by sample through torchvision's transforms, as torchvision's own datasets are used in the seeds."""

    def __init__(self, split: Split) -> None:
        from relay.task.vision import transforms

        self.split = split
        steps: list[object] = []
        if split.images:
            height, width = (side * split.magnification for side in split.inputs.shape[2:])
            if split.repeats > 1:
                steps.append(transforms.Grayscale(split.repeats))
            if split.magnification > 1:
                steps.append(transforms.Resize((height, width), transforms.InterpolationMode.NEAREST))
            steps += [
                transforms.ToTensor(),
                transforms.Normalize(split.mean.flatten().tolist(), split.std.flatten().tolist()),
            ]
        self.transform = transforms.Compose(steps)

    def __getitem__(self, index: int) -> Batch:
        sample, target = self.split.inputs[index], torch.from_numpy(np.array(self.split.targets[index]))
        if not self.split.images:
            return torch.from_numpy(np.array(sample)), target
        from PIL import Image

        image = Image.fromarray(np.ascontiguousarray(sample[0] if len(sample) == 1 else sample.transpose(1, 2, 0)))
        return self.transform(image), target


def _start_worker(_worker: int) -> None:
    """What reaches every process of a job ends no worker: its trainer still needs it for the step at which it saves."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    cpus.unbind()


class Streamed:
    """torch's DataLoader over torchvision's transforms, with worker processes and pinned memory."""

    def __init__(self, split: Split, device: torch.device, dtype: torch.dtype, workers: int) -> None:
        self.samples, self.device, self.workers = _Samples(split), device, workers
        self.dtype = torch.int64 if split.tokens else dtype

    def batches(self, index_lists: Iterable[torch.Tensor]) -> Iterator[Batch]:
        """A batch for each list of samples, in order; one stream across epochs, so that workers start only once."""
        loader = DataLoader(
            self.samples,
            batch_sampler=(indices.tolist() for indices in index_lists),  # lazily
            num_workers=self.workers,
            worker_init_fn=_start_worker if self.workers else None,
            pin_memory=self.device.type == "cuda",
            # Its own generator: the loader would otherwise draw a seed from the rank's, and a resumed run's dropout
            # would part from an uncut one's.
            generator=torch.Generator(),
        )
        for inputs, targets in loader:
            moved = inputs.to(self.device, non_blocking=True)
            yield moved.to(self.dtype), targets.to(self.device, non_blocking=True)


def feeder(kind: str, split: Split, device: torch.device, dtype: torch.dtype, workers: int) -> Resident | Streamed:
    """The way of feeding that a run declares: "resident" or "dataloader"."""
    return Resident(split, device, dtype) if kind == "resident" else Streamed(split, device, dtype, workers)
