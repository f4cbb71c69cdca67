"""torchvision beside a torch without CUDA.

The registry's torchvision is built against CUDA. Beside a CPU-only torch its extension does not load, and its import
then fails because two operators have no schema (`operator torchvision::nms does not exist`). Declaring these first is
enough for datasets, transforms and models. A torchvision of PyTorch's own CPU index brings the operators itself.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch


@cache
def importable() -> None:
    """Let `import torchvision` work, whichever torch is here."""
    try:
        built = version("torchvision")
    except PackageNotFoundError:
        return
    if torch.version.cuda is None and "+" not in built:
        schemas = torch.library.Library("torchvision", "FRAGMENT")
        schemas.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        schemas.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(schemas)  # they end with it


_kept: list[torch.library.Library] = []
