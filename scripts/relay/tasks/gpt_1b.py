"""A GPT of 1.0 G parameters; its learning rate is as GPT-3's."""

from relay.tasks._gpt import GPT


class Task(GPT):
    length, width, depth, heads = 256, 2048, 20, 16
    global_batch_size, learning_rate = 32, 2e-4
    small = {"width": 128}  # as many layers and heads: it is split in the same way
