"""A GPT of 86 M parameters: GPT-2's smallest shape, whose 124 M are due to 50,257 tokens in place of 256 bytes."""

from relay.tasks._gpt import GPT


class Task(GPT):
    length, width, depth, heads = 256, 768, 12, 12
    global_batch_size, learning_rate = 64, 6e-4
    small = {"width": 96}  # as many layers and heads: it is split in the same way
