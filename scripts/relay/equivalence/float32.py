"""Whether this machine's float32 arithmetic is float32: products and convolutions, against the same in float64.

A variable of the environment can lower every process alike. Then no comparison of two of them shows it. A model's own
training would not tell: in a deep one, rounding alone may move an update by a fifth.
"""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F

from relay.base.errors import UserError
from relay.equivalence.figures import distance, norm, share
from relay.process.generators import drawn_from
from relay.spec import arithmetic
from relay.spec.setting import TF32

# Relative, as L2 norms: rounding in float32 gives 1e-6 or less, products in bfloat16 give 1e-3 or more.
LIMIT = 1e-5


def check(precision: str, device: torch.device) -> None:
    """Raises UserError where products in float32 are further from those in float64 than rounding explains.

    There is nothing to check for runs in float64, which use no float32, and in tf32, which lower it themselves.
    """
    if precision == "fp64" or precision in TF32:
        return
    products, exact = (_products(device, dtype) for dtype in (torch.float32, torch.float64))
    figure = max(share(distance([pair]), norm([pair[1]])) for pair in zip(products, exact, strict=True))
    if figure <= LIMIT:
        return
    variables = arithmetic.variables_set(os.environ)
    cause = f"the environment has {variables}: unset what lowers it" if variables else "its cause is unknown"
    raise UserError(
        f"the reference: products in float32 are {figure:.1e} away from those in float64; allowed is {LIMIT:.0e}. This "
        f"machine's float32 arithmetic is not float32; {cause}"
    )


def _products(device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    """A linear layer's and a convolution's results and gradients, of the same numbers in every type."""
    with drawn_from(0):
        shapes = ((256, 384), (192, 384), (16, 16, 24, 24), (32, 16, 3, 3))
        given = [torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes]
    rows, weights, images, kernels = given
    results = [F.linear(rows, weights), F.conv2d(images, kernels, padding=1)]
    loss = torch.stack([result.square().sum() for result in results]).sum()
    return [*(result.detach() for result in results), *torch.autograd.grad(loss, given)]
