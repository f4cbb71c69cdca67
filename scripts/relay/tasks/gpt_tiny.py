"""A GPT of 0.24 M parameters, for tests."""

from relay.tasks._gpt import GPT


class Task(GPT):
    width, depth, heads = 64, 4, 4
