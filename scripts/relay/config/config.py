"""The config as typed code: what may be asked, its defaults, and what each key means.

The JSON schema for editors, `config/config.yaml` and `config/README.md` are generated from here
by `scripts/schema.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from relay.base.errors import UserError
from relay.config.blocks import Answer, Epochs, Gate, Probe, Seed, Segment, SpotChecks
from relay.config.comparisons import Axis, Comparison, OptionValue
from relay.spec.blocks import Block, Natural, Positive, Text, Whole
from relay.spec.messages import error_lines, show
from relay.spec.recipe import Scaling
from relay.spec.tasks import built_in


def _task_name(name: str) -> str:
    if name not in built_in() and not name.endswith(".py"):
        if Path(f"{name}.py").is_file():
            raise PydanticCustomError("refused", "'{name}' is unknown; did you mean '{name}.py'?", {"name": name})
        raise PydanticCustomError("unknown_task", "is unknown")
    return name


def _without_user(address: str) -> str:
    if "@" in urlsplit(address).netloc:
        line = (
            "the address has a user in it, whom all users of the machine would see; write user and password to ~/.netrc"
        )
        raise PydanticCustomError("refused", "{line}", {"line": line})
    return address


Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Address = Annotated[str, Field(pattern=r"^(https?|file)://\S+$"), AfterValidator(_without_user)]
TaskName = Annotated[
    str,
    AfterValidator(_task_name),
    WithJsonSchema({"anyOf": [{"type": "string", "enum": built_in()}, {"type": "string", "pattern": r"\.py$"}]}),
]


def _alone(value: Any) -> Any:
    """A list of one value as that value."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _default_comparisons() -> list[Comparison]:
    """For two cores: threads, loaders, two processes as a chain of two jobs, and the GPU if any."""
    comparisons: list[dict[str, Any]] = [
        {"strategy": "cpu", "cpus_per_task": [1, 2]},
        {"strategy": "cpu", "cpus_per_task": 2, "loader": "dataloader"},
        {"strategy": "ddp", "devices_per_node": 2, "segment": {"epochs": 10.0}},
        {"strategy": "single_gpu"},
    ]
    return [Comparison.model_validate(comparison) for comparison in comparisons]


class Config(Block):
    """Everything that `config.yaml` and `--config` may say."""

    task: TaskName = Field(
        default="lenet-digits",
        description="what to train: the name of a built-in task, or the file of one of your own (task.py)",
    )
    task_options: dict[str, Axis[OptionValue]] = Field(
        default={}, description="the task's own options, each an axis: {name: value or list}"
    )
    epochs: Epochs | None = Field(
        default=None, description="length of each run, in passes over the training set; null: the task's"
    )
    repeats: Natural = Field(default=5, description="runs of each setting; repeat r trains with seed + r")
    seed: Seed = Field(default=1, description="seed of initial weights, order of samples, and order of the jobs")
    site: Text | None = Field(
        default=None,
        description="the cluster: a file of config/sites by name, or a path; null: what the profile says",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="for strategies that run on either; auto: cuda where the site, or this machine, has NVIDIA GPUs",
    )
    global_batch_size: Natural | None = Field(
        default=None, description="samples per optimiser step over all devices; null: the task's"
    )
    learning_rate: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | None = Field(
        default=None, description="learning rate at the task's own global batch size; null: the task's"
    )
    learning_rate_scaling: Scaling = Field(
        default="none",
        description="how the learning rate grows with the global batch size, from the task's own on",
    )
    dataset_root: Text | None = Field(
        default=None,
        description="folder with a copy of the dataset that you already have; null: it is downloaded",
    )
    dataset_mirror: Address | None = Field(
        default=None,
        description="address to download the dataset from, in place of its usual ones; "
        "file:///… is a folder with the downloaded files",
    )
    segment: Segment | None = Field(
        default=None,
        description="what one job does of a run: {epochs: n}, {steps: n} or {minutes: n}; null: all of it",
    )
    checkpoint_minutes: Positive = Field(default=10.0, description="minutes between checkpoints within a job")
    checkpoint_every_epochs: Epochs | None = Field(
        default=None, description="epochs between checkpoints, beside those by checkpoint_minutes; null: only these"
    )
    checkpoint_every_steps: Natural | None = Field(
        default=None, description="the same in steps, in place of checkpoint_every_epochs; null: as that says"
    )
    cuda_graph: bool = Field(
        default=True,
        description="whether a step on a GPU is captured as a CUDA graph and replayed, where it computes the same so: "
        "small networks train several times as fast; false: never",
    )
    warmup_steps: Whole = Field(default=10, description="steps at the start of each job that are not timed")
    observed_steps: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=20,
        description="steps at the end of each run's first job that are observed instead of timed, to show what a "
        "step's time goes to: at most a tenth of the job's; 0: none",
    )
    monitor_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        default=1.0,
        description="seconds between two looks at the CPUs, memory and GPUs that a run uses, while it trains; 0: none",
    )
    evaluate_every_epochs: Epochs = Field(default=1.0, description="epochs between evaluations on the test set")
    runtime_minutes: Natural = Field(default=60, description="time limit declared for each job")
    time_limits: list[Natural] = Field(
        default=[],
        description="time limits, in minutes, for which `snakemake plan` says how many jobs a training needs, once it "
        "has been measured; []: runtime_minutes, and the longest jobs of the site's partitions",
    )
    memory_mb_per_node: Natural | None = Field(
        default=None, description="main memory that a job asks for on each node; null: the site's share"
    )
    right_size: bool = Field(
        default=True,
        description="on a cluster: ask for the memory and time that finished runs of the setting, or of another length "
        "of it, needed, with a margin, where that is less than what is declared",
    )
    max_device_hours: Positive | None = Field(
        default=None,
        description="budget: the hours of devices that all jobs of the plan may take, by their time limits, with what "
        "they have taken so far. A device is a GPU; of jobs without GPUs, as many CPU cores as one counts as",
    )
    over_budget: Literal["refuse", "drop_repeats"] = Field(
        default="refuse",
        description="what is done with a plan beyond max_device_hours: refuse it, or leave out its last repeats, of "
        "all settings alike, down to two",
    )
    drop_slower_than: Annotated[float, Field(ge=1.5, allow_inf_nan=False)] | None = Field(
        default=None,
        description="settings get no further repeats where, in the first two, another proven setting that costs "
        "no more was this many times as fast; null: all get theirs",
    )
    anchor: bool = Field(
        default=True,
        description="whether the recommended setting is measured again where settings are added on a later day, as "
        "often as these, so that they are compared on one day",
    )
    most_jobs: Natural = Field(
        default=10_000, description="most training jobs that a config may ask for: settings × repeats × segments"
    )
    margin: Fraction = Field(default=0.03, description="speeds that differ by less than this fraction are a tie")
    least_efficiency: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = Field(
        default=0.7,
        description="more devices are recommended where the speed grows by at least this fraction of what they cost",
    )
    target_accuracy: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = Field(
        default=None,
        description="the test accuracy to which the report tells each setting's time, of tasks that measure one; null: "
        "the highest whole per cent that all settings reach",
    )
    answer: Answer = Field(default=Answer(), description="the training that the answer is for")
    gate: Gate = Field(default=Gate(), description="the equivalence gate")
    unproven: Literal["skip", "measure"] = Field(
        default="skip",
        description="what is done with settings that cannot be proven, because the loss is no mean over samples, "
        "or because the model draws random numbers that are not torch's: skip them, or measure them and say of each "
        "that it is not proven",
    )
    spot_checks: SpotChecks = Field(
        default=SpotChecks(), description="steps of the runs themselves that are computed again in one plain process"
    )
    probe: Probe = Field(default=Probe(), description="the search for the largest batch, or model, that fits")
    packages: dict[str, list[Text]] = Field(
        default={},
        description="packages of your own beside those of a stack: {stack: [packages]}, such as "
        "{torch: [einops, transformers==4.57.1]}; the driver records their versions",
    )
    strategy_folders: list[Text] = Field(default=[], description="folders with strategies of your own, one per file")
    shrink: bool = Field(
        default=False,
        description="whether to try the comparison out on a laptop: on CPUs of one machine, with at most 4 processes "
        "of 2 CPUs, 2 repeats, an epoch and a gate of 40 steps, and with what `shrunk` says",
    )
    shrunk: dict[str, Any] = Field(
        default={},
        description="keys of this config that `shrink: true` replaces, such as {task: lenet-digits, epochs: 2}",
    )
    comparisons: Annotated[list[Comparison], Field(min_length=1)] = Field(
        default_factory=_default_comparisons,
        description="what to compare: strategies with their axes",
    )

    def written(self) -> dict[str, Any]:
        """The config as one would write it, with every key; comparisons without what is left at its default."""
        whole = self.model_dump(mode="json")
        comparisons = [each.model_dump(mode="json", exclude_defaults=True) for each in self.comparisons]
        for each in comparisons:
            if "command" in each:  # by which the strategy is named
                del each["strategy"]
        return whole | {"comparisons": [{k: _alone(v) for k, v in each.items()} for each in comparisons]}

    @model_validator(mode="after")
    def _one_rhythm_of_checkpoints(self) -> Config:
        if self.checkpoint_every_steps and self.checkpoint_every_epochs:
            raise PydanticCustomError(
                "exceeds",
                "checkpoint_every_steps: {steps} contradicts checkpoint_every_epochs {epochs}; give one",
                {"steps": self.checkpoint_every_steps, "epochs": f"{self.checkpoint_every_epochs:g}"},
            )
        return self

    @model_validator(mode="after")
    def _segments_fit_their_jobs(self) -> Config:
        for segment in (self.segment, *(c.segment for c in self.comparisons)):
            if segment and segment.minutes and segment.minutes > self.runtime_minutes:
                raise PydanticCustomError(
                    "exceeds",
                    "segment.minutes: {minutes} is not allowed; allowed: at most {limit} (runtime_minutes)",
                    {"minutes": f"{segment.minutes:g}", "limit": self.runtime_minutes},
                )
        return self


def load(raw: Mapping[str, Any] | None) -> Config:
    """The config of a mapping as YAML gives it; what is left out has its default.

    Raises UserError with one line per mistake: the key, its value, and what is allowed.
    """
    if raw is not None and not isinstance(raw, Mapping):
        raise UserError(f"config: {show(raw)} is not allowed; allowed: keys and values")
    given = dict(raw or {})
    if given.pop("checkpoint_writers", None):  # for one release
        message = "it has no meaning any more: a group is warned of, what everyone can write is refused; delete it"
        print(f"warning: config: checkpoint_writers: {message}", file=sys.stderr)
    try:
        return Config.model_validate(given)
    except ValidationError as error:
        raise UserError("\n".join(error_lines(error, raw or {}, Config.model_json_schema()))) from None
