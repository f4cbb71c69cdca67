"""The config as typed code: what may be asked, its defaults, and what each key means.

The JSON schema for editors, `config/config.yaml` and `config/README.md` are generated from here
by `scripts/schema.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from relay.config.blocks import Answer, Epochs, Gate, Probe, Seed, Segment, SpotChecks
from relay.config.comparisons import Comparison, OptionValue, Values
from relay.spec.recipe import Scaling
from relay.spec.site import Site
from relay.spec.site_blocks import Partition, StackName
from relay.spec.tasks import built_in
from relay.spec.yaml_file import Block, Natural, Positive, Text, Whole, refused, validated


def _task_name(name: str) -> str:
    if name not in built_in() and not name.endswith(".py"):
        if Path(f"{name}.py").is_file():
            raise refused(f"'{name}' is unknown; did you mean '{name}.py'?")
        raise PydanticCustomError("unknown_task", "is unknown")
    return name


def _without_user(address: str) -> str:
    if "@" in urlsplit(address).netloc:
        raise refused(
            "the address has a user in it, whom all users of the machine would see; write user and password to ~/.netrc"
        )
    return address


# Where people look for the account or the partition of their jobs.
OF_THE_SITE = dict.fromkeys(
    [*Site.model_fields, *Partition.model_fields, "partition"], "in the site's file (docs/sites.md)"
)
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
        description="what to train: the name of a built-in task, or your own task's file (task.py)",
    )
    task_options: dict[str, Values[OptionValue]] = Field(
        default={}, description="the task's own options, each an axis: {name: value or list}"
    )
    epochs: Epochs | None = Field(
        default=None, description="length of each run, in passes over the training set; null: the task's"
    )
    repeats: Natural = Field(default=5, description="runs of each setting; repeat r trains with seed + r")
    seed: Seed = Field(default=1, description="seed of initial weights, order of samples, and order of the jobs")
    site: Text | None = Field(
        default=None, description="the cluster: a name in config/sites, or the path of a file; null: the profile's"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="for strategies that run on both; auto: cuda if the site, or this machine, has NVIDIA GPUs",
    )
    global_batch_size: Natural | None = Field(
        default=None, description="samples per optimiser step over all devices; null: the task's"
    )
    learning_rate: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | None = Field(
        default=None, description="learning rate at the task's own global batch size; null: the task's"
    )
    learning_rate_scaling: Scaling = Field(
        default="none", description="how the learning rate grows with the global batch size"
    )
    dataset_root: Text | None = Field(
        default=None, description="folder with your own copy of the dataset; null: it is downloaded"
    )
    dataset_mirror: Address | None = Field(
        default=None,
        description="address to download the dataset from, instead of the usual ones; "
        "file:///… is a folder with the downloaded files",
    )
    segment: Segment | None = Field(
        default=None,
        description="the part of a run that one job trains: {epochs: n}, {steps: n} or {minutes: n}; null: all of it",
    )
    checkpoint_minutes: Positive = Field(default=10.0, description="minutes between checkpoints within a job")
    checkpoint_every_epochs: Epochs | None = Field(
        default=None, description="epochs between further checkpoints; null: only those of checkpoint_minutes"
    )
    checkpoint_every_steps: Natural | None = Field(
        default=None, description="the same in steps, instead of checkpoint_every_epochs"
    )
    cuda_graph: bool = Field(
        default=True,
        description="whether steps on a GPU are replayed as a CUDA graph, if they compute the same: small networks "
        "then train several times as fast",
    )
    warmup_steps: Whole = Field(default=10, description="steps at the start of each job that are not timed")
    observed_steps: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=20,
        description="steps of each run's first job that are not timed, but show what a step's time goes to: at most a "
        "tenth of the job's; 0: none",
    )
    monitor_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        default=1.0, description="seconds between two readings of a run's use of CPUs, memory and GPUs; 0: none"
    )
    evaluate_every_epochs: Epochs = Field(default=1.0, description="epochs between evaluations on the test set")
    runtime_minutes: Natural = Field(default=60, description="time limit declared for each job")
    time_limits: list[Natural] = Field(
        default=[],
        description="time limits in minutes: `snakemake plan` shows how many jobs each would need, after a "
        "measurement; []: runtime_minutes, and the longest jobs of the site's partitions",
    )
    memory_mb_per_node: Natural | None = Field(
        default=None, description="main memory that a job asks for on each node; null: the site's share"
    )
    right_size: bool = Field(
        default=True,
        description="on a cluster: if finished runs of a setting needed less memory and time than declared, its later "
        "jobs ask for less, with a margin",
    )
    max_device_hours: Positive | None = Field(
        default=None,
        description="budget: the device-hours that all jobs of the plan may take, used hours included. A device is a "
        "GPU; in jobs without GPUs, several CPU cores count as a device",
    )
    over_budget: Literal["refuse", "drop_repeats"] = Field(
        default="refuse",
        description="if a plan exceeds max_device_hours: refuse it, or leave out the last repeats of all settings, "
        "down to two",
    )
    drop_slower_than: Annotated[float, Field(ge=1.5, allow_inf_nan=False)] | None = Field(
        default=None,
        description="a setting gets no further repeats if another proven setting, which costs no more, was this many "
        "times as fast in the first two; null: all repeats are made",
    )
    anchor: bool = Field(
        default=True,
        description="whether the recommended setting is measured again, beside settings that you add on a later day",
    )
    most_jobs: Natural = Field(
        default=10_000, description="the largest number of training jobs: settings × repeats × segments"
    )
    margin: Fraction = Field(default=0.03, description="speeds that differ by less than this fraction are a tie")
    least_efficiency: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = Field(
        default=0.7,
        description="more devices are recommended if the speed grows by at least this fraction of the growth in cost",
    )
    target_accuracy: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = Field(
        default=None,
        description="the report gives each setting's time to this test accuracy; null: the highest whole per cent that "
        "all settings reach",
    )
    answer: Answer = Field(default=Answer(), description="the training that the answer is for")
    gate: Gate = Field(default=Gate(), description="the equivalence gate")
    unproven: Literal["skip", "measure"] = Field(
        default="skip",
        description="settings that cannot be proven, for example because the loss is no mean over samples: skip them, "
        "or measure them and call them not proven",
    )
    spot_checks: SpotChecks = Field(
        default=SpotChecks(), description="steps of the runs that one plain process computes again"
    )
    probe: Probe = Field(default=Probe(), description="the search for the largest batch, or model, that fits")
    packages: dict[StackName, list[Text]] = Field(
        default={},
        description="packages of your own beside a stack's, such as {torch: [einops, transformers==4.57.1]}; the "
        "driver records their versions",
    )
    strategy_folders: list[Text] = Field(
        default=[], description="folders with strategies of your own, one in each file"
    )
    shrink: bool = Field(
        default=False,
        description="whether to try the comparison on a laptop: CPUs of one machine, at most 4 processes of 2 CPUs, "
        "2 repeats, an epoch, a gate of 40 steps, and the keys of `shrunk`",
    )
    shrunk: dict[str, Any] = Field(
        default={},
        description="keys of this config that `shrink: true` replaces, such as {task: lenet-digits, epochs: 2}",
    )
    comparisons: Annotated[list[Comparison], Field(min_length=1)] = Field(
        default_factory=_default_comparisons, description="what to compare: strategies with their axes"
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
    def _one_rhythm_of_checkpoints(self) -> Self:
        if self.checkpoint_every_steps and self.checkpoint_every_epochs:
            raise refused(
                f"checkpoint_every_steps: {self.checkpoint_every_steps} contradicts checkpoint_every_epochs "
                f"{self.checkpoint_every_epochs:g}; give one"
            )
        return self

    @model_validator(mode="after")
    def _segments_fit_their_jobs(self) -> Self:
        segments = {"": self.segment} | {f"comparisons[{i}].": each.segment for i, each in enumerate(self.comparisons)}
        for place, segment in segments.items():
            if segment and segment.minutes and segment.minutes > self.runtime_minutes:
                limit = f"at most {self.runtime_minutes} (runtime_minutes)"
                raise refused(f"{place}segment.minutes: {segment.minutes:g} is not allowed; allowed: {limit}")
        return self


def load(raw: Mapping[str, Any]) -> Config:
    """The config of a mapping as YAML gives it; what is left out has its default.

    Raises UserError with one line per mistake: the key, its value, and what is allowed.
    """
    return validated(Config, raw, "config", OF_THE_SITE)
