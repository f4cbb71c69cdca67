"""A GPT of 4.4 G parameters, which with AdamW in float32 (16 bytes for each) fill a GPU of 80 GB."""

from relay.tasks._gpt import GPT


class Task(GPT):
    length, width, depth, heads = 256, 4096, 22, 32
    global_batch_size, learning_rate = 8, 1.2e-4
    small = {"width": 256}  # as many layers and heads: it is split in the same way
