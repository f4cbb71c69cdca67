"""A GPT of 0.12 M parameters and eight blocks, for tests."""

from relay.tasks._gpt import GPT


class Task(GPT):
    width, depth, heads = 32, 8, 4
