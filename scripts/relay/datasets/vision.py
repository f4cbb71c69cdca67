"""torchvision's transforms, also beside a torch without CUDA.

The registry's torchvision is built against CUDA. Beside a CPU-only torch its extension does not load, and its import
then fails because two operators have no schema (`operator torchvision::nms does not exist`). Declaring these first is
enough for datasets, transforms and models. A torchvision of PyTorch's own CPU index brings the operators itself.
"""

from __future__ import annotations

from importlib.metadata import version

import torch

if torch.version.cuda is None and "+" not in version("torchvision"):
    _schemas = torch.library.Library("torchvision", "FRAGMENT")  # kept alive: the schemas end with it
    _schemas.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _schemas.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torchvision import transforms

__all__ = ["transforms"]
