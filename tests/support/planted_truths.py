"""Comparisons whose truth is known, with noise of many kinds, and what the answer says of them.

Each truth names the settings that may be recommended with certainty; none: no certainty is right. Records are made in
memory as the stages write them. A repeat's speed varies by factors of its own, its round, its node and its day.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from relay.comparison import between
from relay.comparison.decision import answers
from relay.comparison.inputs import Inputs, PlannedRun, RunResult
from relay.comparison.setting_result import SettingResult
from relay.comparison.table import comparison_rows
from relay.run_folder.summary import Summary
from relay.spec import strategy_files
from relay.spec.job import Job
from relay.spec.run import Run
from results_tree import told
from short_tasks import shipped
from specifications import made

STRATEGIES = Path(__file__).resolve().parents[2] / "scripts/relay/strategies"
SAMPLES, EPOCHS = 1408, 20  # of an epoch, and of each run
VERDICT: dict[str, Any] = {"equivalent": True, "max_loss_difference": 0.0, "parts": [], "problems": [], "notes": []}
VERDICT |= {"strategy_source": "s"}
BEGAN = datetime(2026, 1, 5, 8, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A setting: its true samples per second, what it costs, learns and varies, and where and when it was measured.

    `spread` is the standard deviation between repeats, of the logarithm. `start`: seconds of a job's start. `nodes` and
    `days` are those of its repeats; by default each repeat has a node at random, and a day all have. `errors`: the part
    of the test samples that are wrong after the first epoch; it shrinks by `learning` in each, down to `least`. In the
    first `perfect` repeats none are. `loss`: the test loss, of a task without classes. `warm_up`: seconds that the
    first steps of a job take more.
    """

    name: str
    speed: float = 1000.0
    cores: int = 1
    gpus: int = 0
    spread: float = 0.01
    start: float = 1.0
    batch: int = 64
    precision: str = "fp32"
    errors: float = 0.3
    learning: float = 0.9
    least: float = 0.02
    perfect: int = 0
    loss: float | None = None
    warm_up: float = 0.0
    nodes: Sequence[str] = ()
    days: Sequence[int] = ()
    cpu: Sequence[str] = ("AMD EPYC",)
    steps: int | None = None  # that were timed
    repeats: int | None = None  # in place of the truth's
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Settings, the names of those that are right, and the noise that rounds, nodes, days and bad luck add.

    `lucky`: the probability that a repeat takes three times as long. `said`: what each answer has to say; a word.
    The answer is for so many `epochs`, in jobs of so many `minutes`; None: as the runs, without a scheduler.
    """

    name: str
    settings: Sequence[Planted]
    right: Sequence[str] = ()
    repeats: int = 5
    rounds: float = 0.0
    nodes: float = 0.0
    days: float = 0.0
    lucky: float = 0.0
    tails: bool = False
    drift: float = 0.0
    exact: bool = False
    epochs: int | None = None
    minutes: int | None = None
    said: str = ""


def _run(each: Planted, repeat: int) -> Run:
    its, steps = shipped("lenet-digits"), SAMPLES // each.batch
    strategy = "single_gpu" if each.gpus else "cpu"
    shape = {"device": "cuda", "backend": "nccl"} if each.gpus else {"cpus_per_task": each.cores}
    return made(
        Run, id=f"{each.name}-r{repeat}", setting_id=each.name, repeat=repeat, seed=repeat, task=its.task,
        dataset=its.dataset, strategy=strategy, strategy_file=str(STRATEGIES / f"{strategy}.py"),
        global_batch_size=each.batch, epochs=float(EPOCHS), steps_per_epoch=steps, total_steps=EPOCHS * steps,
        evaluate_every_steps=steps, precision=each.precision, launcher="none", **shape,
        warmup_steps=sum(map(ord, each.name)),  # settings of one strategy differ in something
    )  # fmt: skip


def _summary(each: Planted, run: Run, speed: float, host: str, cpu: str, day: int, draw: Any) -> Summary:
    steps = run.length.steps_per_epoch
    train = run.length.total_steps * each.batch / speed + each.warm_up
    start = each.start * np.exp(0.05 * draw.standard_normal())
    seeds = np.exp(0.02 * draw.standard_normal())
    wrong = seeds * np.maximum(each.least, each.errors * each.learning ** np.arange(EPOCHS))
    wrong *= run.repeat >= each.perfect
    evaluations: list[dict[str, Any]] = [
        {"step": (epoch + 1) * steps, "test_loss": float(2 * part), "test_accuracy": float(1 - part)}
        for epoch, part in enumerate(wrong)
    ]
    if each.loss is not None:
        evaluations[-1] |= {"test_loss": each.loss + float(np.log(seeds)), "test_accuracy": None}
    return Summary.of({
        "run": run.id, "setting": each.name, "status": "done", "segments": 1, "attempts": 1,
        "samples_per_second": speed, "measured_steps": run.length.total_steps if each.steps is None else each.steps,
        "train_seconds": train, "allocated_seconds": train + start, "startup_seconds": start, "loading_seconds": 0.0,
        "goodput": 0.9, "peak_memory_bytes": 2**28, "peak_main_memory_bytes": 2**28,
        "test_accuracy": evaluations[-1]["test_accuracy"], "test_loss": evaluations[-1]["test_loss"],
        "evaluations": evaluations, "losses": {"steps": [1], "values": [2.3]}, "hosts": [host], "device_name": cpu,
        "versions": {}, "code": "c", "strategy_source": "s", "reason": "",
        "started_at": (BEGAN + timedelta(days=day, minutes=3 * run.repeat)).isoformat(), **each.summary,
    })  # fmt: skip


def runs_of(truth: Truth) -> list[list[Run]]:
    """The repeats of each setting, which are the same in all draws."""
    return [[_run(each, repeat) for repeat in range(each.repeats or truth.repeats)] for each in truth.settings]


def drawn(truth: Truth, draw: np.random.Generator, runs: Sequence[Sequence[Run]]) -> Inputs:
    """The records of one comparison."""
    rounds = truth.rounds * draw.standard_normal(2 * truth.repeats) - truth.drift * np.arange(2 * truth.repeats)
    factors: dict[str | int, float] = {}
    results = []
    for each, its_runs in zip(truth.settings, runs, strict=True):
        for run in its_runs:
            repeat = run.repeat
            host = each.nodes[repeat % len(each.nodes)] if each.nodes else f"n{draw.integers(8)}"
            day = each.days[repeat % len(each.days)] if each.days else 0
            for key, spread in ((host, truth.nodes), (day, truth.days)):
                factors.setdefault(key, spread * draw.standard_normal())
            own = draw.standard_t(3) / np.sqrt(3) if truth.tails else draw.standard_normal()
            noise = each.spread * own + rounds[repeat] + factors[host] + factors[day]
            noise -= np.log(3) * (draw.random() < truth.lucky)
            speed = float(each.speed * np.exp(0 if truth.exact else noise))
            cpu = each.cpu[repeat % len(each.cpu)]
            summary = _summary(each, run, speed, host, cpu, day, draw)
            own_batch = {"global_batch_size": each.batch, "learning_rate": run.task.learning_rate, **VERDICT}
            verdict = VERDICT | {"gate": "g", "own_batches": [own_batch]}
            job = Job(memory_mb=1000, minutes=truth.minutes) if truth.minutes else None
            its = {"summary": summary, "verdict": verdict, "job": job, "strategy_source": "s"}
            results.append(RunResult(run=run, planned=PlannedRun(id=run.id, gate="g", segments=[1]), error="", **its))
    return Inputs(runs=results, skipped=[], margin=0.03, rules={"epochs": truth.epochs})


@dataclass(frozen=True)
class Found:
    """What was said of a truth: how often each certainty, how often a wrong one, with its interval, and an example."""

    certainties: Mapping[str, float]
    recommended: Mapping[str, float]
    wrong: float
    least: float
    most: float
    unsaid: float
    example: str


def found(truth: Truth, draws: int, seed: int = 0) -> Found:
    """What the answer says of so many draws of a truth. The first answer counts where there are several."""
    from scipy.stats import binomtest  # which takes a second

    draw = np.random.default_rng([seed, *truth.name.encode()])
    certainties: Counter[str] = Counter()
    recommended: Counter[str] = Counter()
    wrong, unsaid, example, rows, runs = 0, 0, "", None, runs_of(truth)
    reading, strategy_files.read = strategy_files.read, cache(strategy_files.read)
    try:
        for _ in range(draws):
            inputs = drawn(truth, draw, runs)
            rows = rows or comparison_rows(inputs)
            answer, *others = answers(inputs, rows)
            best = str(answer.best.row["setting"]) if answer.best else "none"
            certain = answer.certainty == "winner" and not others
            wrong += certain and best not in truth.right
            certainties["several" if others else answer.certainty] += 1
            recommended[best] += 1
            if truth.said or not example:
                said = " ".join(map(told, (answer, *others)))
                unsaid += truth.said not in said
                example = example or said
    finally:
        strategy_files.read = reading
    probability = binomtest(wrong, draws).proportion_ci()  # Clopper's and Pearson's
    shares = ({name: count / draws for name, count in each.most_common()} for each in (certainties, recommended))
    return Found(*shares, wrong / draws, *probability, unsaid / draws, example)


def changed(spread_of_days: float, draws: int, *, days: int = 1, ratio: float = 1.0) -> Counter[str]:
    """What `relay compare-results` calls two folders of so many days each, when only the day differs, or a ratio."""
    draw, said = np.random.default_rng([draws, days]), Counter[str]()
    one, row = Planted(name="one"), {"strategy": "cpu", "equivalent": True, "status": "done", "samples_per_second": 1.0}
    for _ in range(draws):
        sides = []
        for side, first in ((1.0, 0), (ratio, 100)):
            its = replace(one, speed=one.speed * side, days=[first + day for day in range(days)])
            truth = Truth(name="", settings=[its], days=spread_of_days, repeats=3 * days)
            sides.append(SettingResult(row, "", drawn(truth, draw, runs_of(truth)).runs))
        said[between._changed(*sides, 0.03).change] += 1
    return said


GPU = Planted(name="gpu", gpus=1, speed=8000.0, start=0.1)
ONE = Planted(name="one")
UNEVALUATED: dict[str, Any] = {"evaluations": [], "test_accuracy": None, "test_loss": None}


def beside(name: str, factor: float, **more: Any) -> Planted:
    """A setting that is so many times as fast as `ONE`."""
    return replace(ONE, name=name, speed=factor * ONE.speed, **more)


#: The issue's own, then others.
TRUTHS = [
    Truth(
        name="48 cores are 2.5 times as fast as one GPU",
        settings=[beside("cores", 20, cores=48, start=0.1), GPU],
        right=["gpu"],
        said="A GPU is worth it where an hour of it costs less than",
    ),
    Truth(
        name="10 % more steps a second, start-up of 600 s beside 9 s, 12 s of steps",
        settings=[beside("slow-start", 2.6, start=600.0), beside("quick-start", 2.36, start=9.0)],
        right=["quick-start"],
    ),
    Truth(
        name="batch 512 has 3 times the samples/s, and reaches the accuracy after 3 times as long",
        settings=[beside("b512", 3, batch=704, errors=0.9, learning=0.905, least=0.001),
                  beside("b64", 1, errors=0.1, learning=0.6, least=0.001)],
        right=["b64"],
    ),
    Truth(
        name="test accuracy of 97.3 beside 99.0 %, in as many epochs",
        settings=[beside("worse", 2, batch=704, least=0.027, learning=0.7),
                  beside("better", 1, least=0.010, learning=0.7)],
        said="learns less",
    ),
    Truth(
        name="batch 704 has twice the samples/s, and nothing was evaluated",
        settings=[beside("b704", 2, batch=704, summary=UNEVALUATED), beside("b64", 1, summary=UNEVALUATED)],
        said="other trainings: speed does not compare them",
    ),
    Truth(
        name="all repeats of a setting on one node; nodes differ by 10 %",
        settings=[replace(ONE, nodes=["n1"]), beside("other", 1.0, nodes=["n2"])],
        nodes=0.1,
        said="all repeats of",
    ),
    Truth(
        name="each setting on two nodes of its own, five times on each; nodes differ by 10 %",
        settings=[replace(ONE, nodes=["n1", "n2"]), beside("other", 1.0, nodes=["n3", "n4"])],
        repeats=10,
        nodes=0.1,
        said="5 of 10 repeats of",
    ),
    Truth(
        name="nine of ten repeats of each on a day of its own; days differ by 10 %",
        settings=[replace(ONE, days=[0] * 9 + [1]), beside("other", 1.0, days=[0] + [1] * 9)],
        repeats=10,
        days=0.1,
        said="9 of 10 repeats of",
    ),
    Truth(
        name="the faster setting was never evaluated",
        settings=[beside("fast", 1.5, summary=UNEVALUATED), ONE],
        said="was never evaluated, so that nobody knows what it learns",
    ),
    Truth(
        name="the better setting makes no mistake in four repeats of five",
        settings=[beside("worse", 2, least=0.03, learning=0.1), beside("perfect", 1, perfect=4)],
        said="learns less",
    ),
    Truth(
        name="a loss that is below 0, and 0.5 lower",
        settings=[beside("worse", 2, loss=-1.0), beside("better", 1, loss=-1.5)],
        said="learns less",
    ),
    Truth(
        name="5,000 epochs in jobs of 20 minutes; starts of 600 s beside 9 s, 15 % more steps a second",
        settings=[beside("slow-start", 1.15, start=600.0), beside("quick-start", 1.0, start=9.0)],
        right=["quick-start"],
        epochs=5000,
        minutes=20,
    ),
    Truth(
        name="10,000 epochs; one compiles for 60 s, and has 15 % more steps a second",
        settings=[beside("compiled", 1.15, warm_up=60.0), ONE],
        right=["compiled"],
        epochs=10_000,
    ),
    Truth(
        name="settings were measured on different days, which differ by 10 %",
        settings=[replace(ONE, days=[0]), beside("other", 1.0, days=[1])],
        days=0.1,
        said="was measured on",
    ),
    Truth(
        name="a setting added on a later day, on which the other was measured again; days differ by 10 %",
        settings=[replace(ONE, days=[0] * 5 + [1] * 5, repeats=10), beside("added", 1.0, days=[1])],
        days=0.1,
    ),
    Truth(
        name="the same, and the added one is 15 % slower",
        settings=[replace(ONE, days=[0] * 5 + [1] * 5, repeats=10), beside("added", 0.85, days=[1])],
        right=["one"],
        days=0.1,
    ),
    Truth(
        name="A measured on an EPYC in January, B on a Xeon in June",
        settings=[replace(ONE, days=[0]), beside("other", 0.7, days=[150], cpu=["Intel Xeon"])],
        said="ran on AMD EPYC",
    ),
    Truth(
        name="one repeat of three is 3 times slower, by chance",
        settings=[beside("best", 1.2), ONE],
        right=["best"],
        repeats=3,
        lucky=1 / 6,
    ),
    Truth(
        name="7 % slower, rounds differ by 5 % alike for both, 3 repeats",
        settings=[ONE, beside("slower", 0.93)],
        right=["one"],
        repeats=3,
        rounds=0.05,
    ),
    Truth(
        name="44 steps, one warms up over 50 steps",
        settings=[beside("slower", 1.0, steps=34), beside("warms-up", 0.8, steps=34)],
        said="too short",
    ),
    Truth(
        name="three values alike to the last digit, 3.1 % apart",
        settings=[ONE, beside("other", 0.969)],
        repeats=3,
        exact=True,
    ),
    Truth(
        name="a GPU is 8 times as fast as one core",
        settings=[replace(ONE, start=0.1), GPU],
        right=["one"],
        said="A GPU is worth it where an hour of it costs less than",
    ),
]  # fmt: skip
#: Noises under which equal settings, small differences and known winners are told apart.
NOISES: dict[str, dict[str, Any]] = {
    "quiet": {},
    "3 repeats": {"repeats": 3},
    "rounds differ by 5 %": {"rounds": 0.05},
    "heavy tails": {"tails": True},
    "nodes differ by 5 %": {"nodes": 0.05},
    "drift of 3 % a round": {"drift": 0.03},
    "one repeat in ten is 3 times slower": {"lucky": 0.1},
}
for _noise, _more in NOISES.items():
    TRUTHS += [
        Truth(name=f"equal; {_noise}", settings=[ONE, beside("other", 1.0)], **_more),
        Truth(name=f"2 % slower; {_noise}", settings=[ONE, beside("other", 0.98)], right=["one"], **_more),
        Truth(name=f"15 % slower; {_noise}", settings=[ONE, beside("other", 0.85)], right=["one"], **_more),
        Truth(
            name=f"2 cores 1.37 times as fast as one, of 1.4; {_noise}",
            settings=[ONE, beside("two", 1.37, cores=2)],
            right=["one"],
            **_more,
        ),
    ]
TRUTHS += [
    Truth(name="twenty equal settings", settings=[beside(f"s{n}", 1.0) for n in range(20)]),
    Truth(name="twenty equal settings, 3 repeats", settings=[beside(f"s{n}", 1.0) for n in range(20)], repeats=3),
    Truth(
        name="nineteen equal settings, and one 2 % faster",
        settings=[beside("best", 1.02), *(beside(f"s{n}", 1.0) for n in range(19))],
        right=["best"],
    ),
    Truth(name="equal; one varies four times as much", settings=[replace(ONE, spread=0.04), beside("other", 1.0)]),
    Truth(name="a virtual machine", settings=[replace(ONE, summary={"virtual": True}), beside("other", 0.5)]),
]
