"""What all tests share."""

import gc
import os
import secrets
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import mini_slurm
import stacks
from relay.base.ending import LOG
from relay.base.errors import UserError
from relay.base.lifeline import DRIVER
from relay.run_folder.alive import ATTEMPT
from relay.spec import arithmetic
from shared import session_folder

# What is imported while tests are collected is there to stay: looking through it for garbage takes seconds.
gc.disable()
# Tests share the CPUs: threads that spin at OpenMP's barriers would cost four times the CPU time of their arithmetic.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Some machines set one of these for all programs: tests plan runs without them.
for name in filter(arithmetic.counts, [*os.environ]):
    del os.environ[name]

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many kills a campaign has, and which; whose strategies are tested."""
    parser.addoption("--kills", type=int, default=24, help="kills of the long campaign (default: %(default)s)")
    parser.addoption("--seed", type=int, default=secrets.randbelow(10**6), help="of campaigns (default: a fresh one)")
    parser.addoption("--stacks", default=stacks.ALL, help="whose tests run beside torch's (default: %(default)s)")


def pytest_configure(config: pytest.Config) -> None:
    """Leave out the tests of stacks that are not asked for."""
    try:
        stacks.ask_for(config.getoption("--stacks").split())
    except UserError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quickest first: a mistake shows before the tests that start processes. What uses the cluster is a Slurm test.

    A file's tests stay together, for they share what is dear to make. Of the files that start processes the dearest
    come first, by the seconds that their tests are allowed: where files are divided, all workers end at about one time.
    Those that use further stacks come last, for these may still be built.
    """
    allowed: Counter[Path] = Counter()
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slurm)
        if takes_long(item):
            limit = item.get_closest_marker("timeout")
            # A campaign may have no limit: 0.
            allowed[item.path] += limit.args[0] or 1e6 if limit else float(item.config.getini("timeout"))
    last = {item.path: of_stacks(item) for item in items}
    items.sort(key=lambda i: (last[i.path], i.path in allowed, -allowed[i.path], i.path, takes_long(i)))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """No collection of garbage in a test looks at it either."""
    gc.freeze()
    gc.enable()


def of_stacks(item: pytest.Item) -> bool:
    """Whether the test's file uses environments of further stacks."""
    return stacks.used_by(getattr(item, "module", None))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test of a stack begins when nothing is built any more: its own time begins then, too."""
    if of_stacks(item):
        stacks.wait_for_builds()
    return (yield)


def takes_long(item: pytest.Item) -> int:
    """0: at most a few seconds, 1: more, 2: many minutes."""
    return bool(item.get_closest_marker("slow")) + 2 * bool(item.get_closest_marker("long"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mini_slurm.MiniSlurm]:
    """A real Slurm cluster, up for the session: see `relay.virtual_cluster.cluster` for its nodes and partitions."""
    mini_slurm.require()
    with mini_slurm.MiniSlurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slurm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For a cluster of a test's own: `tmp_path` holds the test's name, and is too long for the sockets in it."""
    return tmp_path_factory.mktemp("slurm")


@pytest.fixture(autouse=True)
def _as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test changes of this process, or leaves on the cluster, is put back before the next one."""
    # As in a gate: several threads on few cores would wait for each other most of the time.
    if torch := sys.modules.get("torch"):  # not all tests need it, and it takes seconds
        torch.set_num_threads(1)
    before = signal.getsignal(signal.SIGTERM)
    yield
    # A command that a test calls in this process may set a handler, which the next test's forks would inherit.
    signal.signal(signal.SIGTERM, before)
    # A job that a test runs in this process names its attempt here; the next test's belong to none.
    os.environ.pop(ATTEMPT, None)
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").tidy()


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module's gates; what they share with others, the session has made once."""
    from gate_runs import Gates  # with torch

    return Gates(tmp_path_factory.mktemp("gates"), session_folder(tmp_path_factory) / "gates")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's log, beside which it leaves how it ended; there is no driver."""
    monkeypatch.setenv(LOG, str(tmp_path / "job.log"))
    monkeypatch.delenv(DRIVER, raising=False)
    return tmp_path / "job.log"


@pytest.fixture
def open_umask() -> Iterator[None]:
    """By this process's umask, what is made is open to all."""
    before = os.umask(0)
    yield
    os.umask(before)


# Fixtures of modules in `support`, imported when a test asks for them: most come with torch


@pytest.fixture
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategy files are named from the working directory."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what identity depends on."""
    for name in ("scripts", "envs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / "project" / name, ignore=ignored)
    return tmp_path / "project"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The session's folder of prepared data; each is made when a test first asks for it."""
    folder = session_folder(tmp_path_factory) / "datasets"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def bench(tmp_path: Path, prepared: Path) -> Iterator[Any]:
    """Where a test's runs live; no process of theirs outlives the test."""
    from chain_runs import Bench

    made = Bench(tmp_path, prepared)
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def ranks() -> Iterator[Any]:
    """This process alone, with real process groups."""
    import torch.distributed as dist

    from relay.process.ranks import Ranks

    yield Ranks.join("cpu", "gloo")
    dist.destroy_process_group()


@pytest.fixture
def checkpoints(tmp_path: Path, ranks: Any) -> Any:
    """A run's folder, without a checkpoint."""
    from checkpointed import Checkpoints

    (tmp_path / "run-1").mkdir()
    return Checkpoints(tmp_path / "run-1", ranks)


@pytest.fixture
def training(ranks: Any, prepared: Path) -> Any:
    """A training at its start."""
    from checkpointed import Training

    return Training(ranks, prepared)


@pytest.fixture
def in_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A script of its own in an empty folder, under no launcher and no job, whose processes find `relay.chain`.

    Handlers of signals and of errors are put back.
    """
    from relay.chain.signals import SIGNALS
    from relay.chain.slurm import END_TIME
    from relay.chain.telling import VARIABLES

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "scripts"))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    for each in (*VARIABLES, ("SLURM_JOB_ID", "SLURM_JOB_END_TIME", END_TIME)):
        for name in each:
            monkeypatch.delenv(name, raising=False)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that is told to end in the tests' own process ends nothing but itself."""
    monkeypatch.setattr("relay.chain.signals.Interruption._end_in_time", lambda *_: None)


@pytest.fixture
def tree(tmp_path: Path) -> Any:
    """A results folder without results."""
    from results_tree import Tree

    return Tree(tmp_path)


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A comparison with everything in it; not to be changed."""
    import results_tree

    return results_tree.full(tmp_path_factory.mktemp("full"))
