"""A GPT of 11 M parameters."""

from relay.tasks._gpt import GPT


class Task(GPT):
    length, width, depth, heads = 256, 384, 6, 8
    global_batch_size, learning_rate = 64, 1e-3
    small = {"width": 64}  # as many layers and heads: it is split in the same way
