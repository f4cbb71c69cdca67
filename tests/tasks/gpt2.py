"""Hugging Face's GPT-2, random and small: dict batches, tied weights, and a loss that the model computes."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

import relay


class Windows(Dataset[Any]):
    """Windows of an arithmetic sequence of tokens, as dicts."""

    def __init__(self, count: int, length: int, tokens: int, first: int) -> None:
        self.count, self.length, self.tokens, self.first = count, length, tokens, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start, stride = (self.first + index) * 7, 1 + index % 5
        ids = (start + stride * torch.arange(self.length)) % self.tokens
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


class Task(relay.Task):
    unit = "tokens"
    units_per_sample = 32
    global_batch_size, learning_rate, epochs = 8, 1e-3, 2
    length, tokens, width, layers, heads, dropout = 32, 96, 48, 4, 4, 0.1
    train_count, test_count = 64, 16

    def datasets(self, folder: Path) -> tuple[Windows, Windows]:
        return (
            Windows(self.train_count, self.length, self.tokens, 0),
            Windows(self.test_count, self.length, self.tokens, 10_000),
        )

    def model(self) -> nn.Module:
        config = GPT2Config(
            vocab_size=self.tokens, n_positions=self.length, n_embd=self.width, n_layer=self.layers, n_head=self.heads,
            resid_pdrop=self.dropout, embd_pdrop=self.dropout, attn_pdrop=self.dropout, use_cache=False,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        return GPT2LMHeadModel(config)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, self.learning_rate, weight_decay=0.1)
