"""Statistics of images, by channel."""

import numpy as np

_CHUNK_BYTES = 1 << 24


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
