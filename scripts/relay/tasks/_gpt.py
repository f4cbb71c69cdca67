"""A GPT (Radford et al. 2019): learned positions, norms before each half of a block, GELU; no dropout, an untied head.

With `experts`, each block's feed-forward half is a mixture of experts (Shazeer et al. 2017). The router sends each
token to the two experts with the highest scores. Experts have no capacity limit, so that the result does not depend on
how tokens are batched.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

import relay
from relay.base.errors import UserError
from relay.datasets import arrays
from relay.datasets.text import TOKENS, windows

INITIAL_DEVIATION = 0.02  # GPT-2's
EXPANSION = 4  # of the width, within the feed-forward half
CHOSEN = 2


class Embed(nn.Module):
    """The sum of a token's embedding and its position's."""

    # Tensor parallelism splits both tables by columns and gathers their outputs.
    tensor_plan: ClassVar[Mapping[str, str]] = {"token": "embedding", "position": "embedding"}

    def __init__(self, classes: int, length: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(classes, width)
        self.position = nn.Embedding(length, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(N, L) int64 tokens to (N, L, width)."""
        outputs: torch.Tensor = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return outputs


class Block(nn.Module):
    """Causal self-attention, then for each token a feed-forward network of two layers, or a mixture of experts."""

    # A head has columns of query, key and value, and rows of out.
    tensor_plan: ClassVar[Mapping[str, str]] = {
        "query": "column", "key": "column", "value": "column", "out": "row",
        "up": "column", "down": "row", "moe": "experts",
    }  # fmt: skip

    def __init__(self, width: int, heads: int, experts: int) -> None:
        super().__init__()
        self.head_width, self.mixed = width // heads, bool(experts)
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        if experts:
            self.moe = MoE(width, experts)
        else:
            self.up = nn.Linear(width, EXPANSION * width)
            self.down = nn.Linear(EXPANSION * width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(N, L, width) to the same shape."""
        normed = self.norm1(inputs)
        # -1 is the number of heads on this process, because tensor parallelism splits the heads.
        query, key, value = (
            project(normed).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        inputs = inputs + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.norm2(inputs)
        outputs: torch.Tensor = inputs + (self.moe(normed) if self.mixed else self.down(F.gelu(self.up(normed))))
        return outputs


class MoE(nn.Module):
    """A mixture of experts with stacked parameters: expert e has entry e of each.

    Each token is computed by `chosen` experts. `compute` runs all experts on this process. Expert parallelism replaces
    it by a function that sends tokens to the processes with their experts and calls `run_experts` there.
    """

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.experts, self.chosen = experts, min(CHOSEN, experts)
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, EXPANSION * width))
        self.up_bias = nn.Parameter(torch.empty(experts, EXPANSION * width))
        self.down = nn.Parameter(torch.empty(experts, EXPANSION * width, width))
        self.down_bias = nn.Parameter(torch.empty(experts, width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(..., width) to the same shape: the sum of the experts' outputs, weighted by the router's probabilities."""
        tokens = inputs.flatten(0, -2)
        probabilities, chosen = self.router(tokens).softmax(-1).topk(self.chosen)  # both (tokens, chosen)
        gates = probabilities / probabilities.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)  # pairs of token and expert, sorted by expert
        counts = (chosen.flatten() == torch.arange(self.experts, device=chosen.device).unsqueeze(1)).sum(1)
        computed = self.compute(tokens[order // self.chosen], counts)
        by_token = computed[order.argsort()].unflatten(0, (-1, self.chosen))
        return (by_token * gates.unsqueeze(-1)).sum(1).view_as(inputs)

    def compute(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The experts' outputs (T, width) for tokens (T, width) sorted by expert.

        `counts` (experts,) int64 are the numbers of tokens of each expert.
        """
        return self.run_experts(tokens, counts)

    def run_experts(self, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """As `compute`, for the experts whose parameters are on this process: all of them, or its shard (DTensor)."""
        if tokens.is_meta:  # only the shape is wanted, and the meta device does not know the counts
            return torch.empty_like(tokens)
        experts = zip(
            tokens.split(counts.tolist()),
            *(_local(stacked).unbind() for stacked in (self.up, self.up_bias, self.down, self.down_bias)),
            strict=True,
        )
        return torch.cat(
            [
                torch.addmm(down_bias, F.gelu(torch.addmm(up_bias, some, up)), down)
                for some, up, up_bias, down, down_bias in experts
            ]
        )


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class GPT(relay.Task):
    """A GPT on the bytes of the project's own text, in windows of `length` of them."""

    unit = "tokens"
    data, generated = "relay-text", True
    length, width, depth, heads, experts = 64, 64, 4, 4, 0
    global_batch_size, learning_rate = 32, 1e-3

    @property
    def units_per_sample(self) -> int:  # type: ignore[override]
        """Tokens of a window."""
        return self.length

    def prepare(self, folder: Path) -> None:
        arrays.save(windows(self.length), folder)

    def datasets(self, folder: Path) -> tuple[TensorDataset, TensorDataset]:
        train, test = (TensorDataset(*map(torch.from_numpy, arrays.load(folder, name))) for name in arrays.SPLITS)
        return train, test

    def transform(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and the ones that come next, both int64 (N, length), as embeddings take them."""
        tokens, targets = batch
        return tokens.long(), targets

    def model(self) -> nn.Module:
        """(N, L) int64 tokens to (N, L, TOKENS) logits. Raises UserError where `heads` does not divide `width`."""
        if self.width % self.heads:
            raise UserError(f"width: {self.width} is no multiple of the {self.heads} heads")
        width, heads = self.width, self.heads
        layers: OrderedDict[str, nn.Module] = OrderedDict(embed=Embed(TOKENS, self.length, width))
        for place in range(self.depth):
            layers[f"block{place}"] = Block(width, heads, self.experts)
        layers |= OrderedDict(norm=nn.LayerNorm(width), head=nn.Linear(width, TOKENS, bias=False))
        network = nn.Sequential(layers)
        _initialise(network, self.depth)
        return network

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return F.cross_entropy(outputs.flatten(0, -2), batch[1].flatten())

    def metrics(self, outputs: torch.Tensor, batch: Any) -> dict[str, torch.Tensor]:
        return {"accuracy": (outputs.argmax(-1) == batch[1]).double().mean()}

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, self.learning_rate, weight_decay=0.1)


def _initialise(network: nn.Sequential, depth: int) -> None:
    """Initialise as GPT-2: normal weights, smaller ones where a layer adds to the residual stream, and zero biases."""
    for name, parameter in network.named_parameters():
        layer, _, leaf = name.rpartition(".")
        part = layer.rpartition(".")[2]
        if "bias" in leaf:
            nn.init.zeros_(parameter)
        elif not part.startswith("norm"):
            residual = part in ("out", "down") or leaf == "down"
            nn.init.normal_(parameter, std=INITIAL_DEVIATION / (math.sqrt(2 * depth) if residual else 1.0))
