"""Images: uint8 pixels with one class each; a training normalises them by channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from relay.base.errors import UserError
from relay.datasets.cifar10 import CIFAR10
from relay.datasets.generate import write_digits, write_synthetic
from relay.datasets.kind import Kind, Known, Maker, Reader
from relay.datasets.mnist import MNIST
from relay.datasets.sources import Source
from relay.spec.dataset import DatasetSpec

if TYPE_CHECKING:
    import torch

    from relay.datasets.manifest import Manifest
    from relay.spec.tasks import TaskSpec

_CHUNK_BYTES = 1 << 24


def magnification(shape: tuple[int, ...], task: TaskSpec) -> tuple[int, int]:
    """How often channels are repeated and pixels magnified, so that images of `shape` fit the task's network.

    Raises UserError where no whole factors do.
    """
    factors = [wanted // given for wanted, given in zip(task.input_shape, shape, strict=False)]
    repeats, factor = factors[:2] if len(factors) == 3 else (1, 1)
    if (shape[0] * repeats, *(side * factor for side in shape[1:])) != task.input_shape:
        raise UserError(f"task {task.name}: images of {shape} cannot be magnified to the network's {task.input_shape}")
    return repeats, factor


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation per channel of uint8 images (N, C, H, W), scaled to 0 … 1.

    Summed as whole numbers: the result does not depend on the order or the machine.
    """
    channels = images.shape[1]
    chunk_rows = max(1, _CHUNK_BYTES // (images[0].size * 2))
    total, squares = np.zeros(channels, np.int64), np.zeros(channels, np.int64)
    for start in range(0, len(images), chunk_rows):
        chunk = images[start : start + chunk_rows].astype(np.uint16)  # 255² fits
        total += chunk.sum(axis=(0, 2, 3), dtype=np.int64)
        squares += np.square(chunk).sum(axis=(0, 2, 3), dtype=np.int64)
    count = images.size // channels
    mean = total / count
    variance = squares / count - mean**2
    return tuple((mean / 255).tolist()), tuple((np.sqrt(np.maximum(variance, 0)) / 255).tolist())


class ImageReader(Reader):
    """Grey images become three channels, small ones are magnified by a whole factor: exact in both loaders."""

    def __init__(self, kind: Kind, manifest: Manifest, task: TaskSpec) -> None:
        import torch

        super().__init__(kind, manifest, task)
        if manifest.mean is None or manifest.std is None:
            raise UserError(f"{manifest.name}: its manifest has no mean and deviation; prepare the dataset again")
        self.repeats, self.magnification = magnification(manifest.shape, task)
        # A tensor: by a number, CUDA would multiply with its reciprocal, and round otherwise than the CPU.
        self.most = torch.full((1, 1, 1), 255.0)
        self.mean = torch.tensor(manifest.mean).repeat(self.repeats).view(-1, 1, 1)
        self.std = torch.tensor(manifest.std).repeat(self.repeats).view(-1, 1, 1)

    def ahead(self, stored: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) uint8 images as the network wants them, still uint8."""
        images = stored
        if self.repeats > 1:
            images = images.repeat(1, self.repeats, 1, 1)
        if self.magnification > 1:
            images = images.repeat_interleave(self.magnification, -1).repeat_interleave(self.magnification, -2)
        return images

    def batch(self, samples: torch.Tensor, training: torch.dtype) -> torch.Tensor:
        """Zero mean and unit deviation, computed in float32, then cast."""
        if samples.device != self.mean.device:  # once: a copy in every step would wait for the device
            self.most, self.mean, self.std = (each.to(samples.device) for each in (self.most, self.mean, self.std))
        return samples.float().div_(self.most).sub_(self.mean).div_(self.std).to(training)

    def sampler(self) -> Callable[[np.ndarray], torch.Tensor]:
        """The same through PIL and torchvision's transforms, as torchvision's own datasets are used in the seeds."""
        return _ImageSampler(self)


class _ImageSampler:
    """A stored image (C, H, W) as an input, normalised in float32."""

    def __init__(self, reader: ImageReader) -> None:
        from relay.datasets.vision import transforms

        steps: list[object] = []
        if reader.repeats > 1:
            steps.append(transforms.Grayscale(reader.repeats))
        if reader.magnification > 1:
            sides = tuple(side * reader.magnification for side in reader.manifest.shape[1:])
            steps.append(transforms.Resize(sides, transforms.InterpolationMode.NEAREST))
        steps += [
            transforms.ToTensor(),
            transforms.Normalize(reader.mean.flatten().tolist(), reader.std.flatten().tolist()),
        ]
        self.transform = transforms.Compose(steps)

    def __call__(self, sample: np.ndarray) -> torch.Tensor:
        from PIL import Image

        pixels = sample[0] if len(sample) == 1 else sample.transpose(1, 2, 0)
        transformed: torch.Tensor = self.transform(Image.fromarray(np.ascontiguousarray(pixels)))
        return transformed


def _images(
    name: str,
    shape: tuple[int, ...],
    train_count: int,
    test_count: int,
    origin: Source | Maker,
    *,
    family: str | None = None,
) -> Known:
    """A known set of images with ten classes."""
    spec = DatasetSpec(
        name=name,
        version="1",
        kind="images",
        shape=shape,
        classes=10,
        train_count=train_count,
        test_count=test_count,
    )
    return Known(spec=spec, origin=origin, family=family)


class Images(Kind):
    """Samples of shape (channels, height, width), and the number of a class as the target."""

    unit = "images"
    dimensions = ("channels", "height", "width")
    inputs, targets = "uint8", "int64"
    channels_last = True
    loader_packages = ("torchvision", "pillow|pillow-simd")
    reader = ImageReader
    datasets = (
        _images("digits", (1, 8, 8), 1437, 360, write_digits),
        _images("mnist", (1, 28, 28), 60_000, 10_000, MNIST),
        _images("cifar10", (3, 32, 32), 50_000, 10_000, CIFAR10),
        # For benchmarks: the config's `synthetic` block says shape and counts.
        _images("synthetic", (3, 32, 32), 10_000, 2_000, write_synthetic, family="synthetic"),
    )

    def check_fit(self, shape: tuple[int, ...], task: TaskSpec) -> None:
        """Raises UserError where no whole factors magnify the images to the network's inputs."""
        magnification(shape, task)

    def statistics(self, inputs: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """By channel, of the pixels scaled to 0 … 1."""
        return channel_statistics(inputs)
