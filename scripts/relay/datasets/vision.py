"""torchvision beside a torch without CUDA.

The registry's torchvision is built against CUDA. Beside a CPU-only torch its extension does not load, and its import
then fails because two operators have no schema (`operator torchvision::nms does not exist`). Declaring these first is
enough for datasets, transforms and models. A torchvision of PyTorch's own CPU index brings the operators itself.
"""

from functools import cache

from relay.spec.versions import installed


def needs_help(torch_version: str | None = None) -> bool:
    """Whether torchvision fails at its import here. `torch_version`: by default that of the installed torch."""
    own, beside = torch_version or installed("torch"), installed("torchvision")
    return own is not None and beside is not None and "+cpu" in own and "+" not in beside


@cache
def importable() -> None:
    """Let `import torchvision` work, whichever torch is here."""
    import torch

    if torch.version.cuda is None and needs_help("+cpu"):
        schemas = torch.library.Library("torchvision", "FRAGMENT")
        schemas.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        schemas.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(schemas)  # they end with it


_kept: list[object] = []
