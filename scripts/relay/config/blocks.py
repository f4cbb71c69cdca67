"""The blocks of the config: each says what its keys mean, their defaults, and what is allowed."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from relay.spec.messages import show
from relay.spec.script import compiled
from relay.spec.yaml_file import Block, Natural, Positive, Text, refused

EXAMPLE = "such as 'loss {number}'"
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Epochs = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]


def _pattern(text: str) -> str:
    """A regular expression with the one group that is read."""
    try:
        groups = compiled(text).groups
    except re.error as error:
        raise refused(f"{show(text)} is no regular expression: {error}; allowed: {EXAMPLE}") from None
    if groups != 1:
        raise refused(f"{show(text)} has {groups} groups; allowed: one, for the number, {EXAMPLE}")
    return text


Pattern = Annotated[Text, AfterValidator(_pattern)]


class Segment(Block):
    """How much of a run one job does; exactly one of the three."""

    epochs: Epochs | None = Field(default=None, description="epochs per job")
    steps: Natural | None = Field(default=None, description="steps per job")
    minutes: Positive | None = Field(
        default=None, description="minutes per job, turned into steps by a measured speed: run `snakemake plan` first"
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in Segment.model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise PydanticCustomError("not_one", "gives {given}", {"given": " and ".join(given) or "nothing"})
        return self


class Gate(Block):
    """The equivalence gate: a short training that each strategy must compute as the reference does."""

    seed: Seed = Field(default=20260, description="the gate's own seed, so that repeats share a gate")
    steps: Annotated[int, Field(ge=20, le=100_000)] = Field(
        default=100,
        description="steps of the training in float64, as far as rounding allows them; fewer are for trying things out",
    )


class Read(Block):
    """What is read of a command's output: regular expressions, each with one group; {number} is one for any number."""

    samples_per_second: Pattern | None = Field(
        default=None,
        description="the speed as the script tells it, of all processes together, such as 'img/s: {number}'",
    )
    step: Pattern | None = Field(
        default=None,
        description="the number of a step that has ended, such as 'step {number}'; the speed is that of the steps "
        "times global_batch_size",
    )
    loss: Pattern | None = Field(default=None, description="the training loss")
    accuracy: Pattern | None = Field(
        default=None, description="the test accuracy; a number above 1 is taken as per cent"
    )


class Answer(Block):
    """The training that the answer is for, and what it may take.

    With `deadline_hours`, the cheapest setting is asked for that ends in time; with `budget` alone, the fastest that
    costs no more.
    """

    epochs: Epochs | None = Field(default=None, description="passes over the training set; null: as the comparison's")
    deadline_hours: Positive | None = Field(default=None, description="the most hours of the whole training")
    budget: Positive | None = Field(
        default=None,
        description="the most that the whole training may cost: in the currency of the site's `price`, else in hours "
        "of a CPU core",
    )


class Probe(Block):
    """What `snakemake probe` and `snakemake largest_model` may use in their searches for what fits."""

    memory_fraction: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = Field(
        default=0.9, description="part of the memory to fill: of the GPU's, or of the process's share of the node's"
    )
    minutes: Positive = Field(default=5.0, description="how long to search, for each setting")
    most: Natural = Field(default=4096, description="the largest batch per device to try")
    most_blocks: Natural = Field(default=1000, description="the deepest network that `snakemake largest_model` tries")


class SpotChecks(Block):
    """Which steps of every run are computed again in one plain process, once the run has ended.

    With `random_steps: 0`, `hops: 0` and `end: false` nothing is checked, and the report says so.
    """

    random_steps: Annotated[int, Field(ge=0, le=10)] = Field(
        default=1, description="how many stretches of steps are drawn at random"
    )
    hops: Annotated[int, Field(ge=0, le=10)] = Field(
        default=1, description="how many planned ends of jobs are drawn, over which a chain's checkpoint is handed on"
    )
    end: bool = Field(default=True, description="whether the run's last steps are checked")
    steps: Annotated[int, Field(ge=1, le=20)] = Field(default=2, description="steps of each stretch")
