"""Writes a table, results/proof/table.csv and table.md; the status is 1 if a strategy fails.

With `--passes 20 --steps 20 --precision fp64 --limit-seconds 300` it does so twenty times, briefly: does a process
abort, or hang?
"""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from relay.base import lifeline
from relay.base.entry import ROOT
from relay.base.errors import UserError
from relay.config import config
from relay.config.reading import read_config
from relay.environments import overlay
from relay.environments.locks import lock_of
from relay.equivalence.campaign import Proof, markdown
from relay.equivalence.verdict import refusing
from relay.launch import gpus
from relay.launch.gpus import count_gpus
from relay.planning.inputs import Here
from relay.planning.planner import make_plan
from relay.spec.labels import counted
from relay.spec.messages import unknown
from relay.workflow.unready import check

MOST_LETTERS = 300  # of a cell's problems in the terminal


def read(path: Path, precision: str | None, steps: int | None, task: str | None = None) -> config.Config:
    """The config of a file, with one precision, length of the gate and task where they are given. Raises UserError."""
    raw = read_config(path)
    config.load(raw)  # before it is changed: a mistake is the file's
    changed: dict[str, Any] = {**raw, "warmup_steps": 0}  # nothing is timed, so that a short task is proven, too
    if steps:
        changed["gate"] = {**changed.get("gate", {}), "steps": steps}
    if task:
        changed["task"] = task
    if precision:
        changed["comparisons"] = [{**c, "precision": precision} for c in changed.get("comparisons", [])]
    return config.load(changed)


def proofs(given: Namespace) -> Iterator[Proof]:
    """What there is to prove of each config; what is skipped is printed."""
    sharing = gpus.of_this_machine(cache(count_gpus)) if given.share_gpu else gpus.ALONE
    configs = [
        read(path, given.precision, given.steps, task) for path in given.configs for task in given.task or (None,)
    ]
    plans = [make_plan(each, Here.of(each, sharing=sharing), may="prepare") for each in configs]
    strategies = sorted({name for planned in plans for name in planned.strategies})
    for name in given.strategy or ():
        if name not in strategies:
            raise UserError(f"--strategy: {unknown(f'{name!r} is in none of the configs', name, strategies)}")
    for planned in plans:
        for name in [name for name in planned.strategies if not given.strategy or name in given.strategy]:
            for skipped in planned.skipped_of(name):
                task, processes = skipped.setting.task.name, skipped.setting.shape.world_size
                print(f"skipped: {task}, {name} on {processes}: {'; '.join(skipped.reasons)}")
        pairs = [(gate, planned.references[planned.reference_of[name]]) for name, gate in planned.gates.items()]
        chosen = [
            (gate, reference) for gate, reference in pairs if not given.strategy or gate.strategy.name in given.strategy
        ]
        if chosen:
            check(planned, given.folder)
        root = Path(planned.config.dataset_root).expanduser() if planned.config.dataset_root else None
        yield Proof(chosen, given.folder, given.limit_seconds, root, planned.config.dataset_mirror)


def shortened(problems: str) -> str:
    """The first of many problems, as a terminal shows them; the table has all."""
    first, _, more = problems[:MOST_LETTERS].rpartition("; ")
    return f"{first or more}; the table has all of it" if len(problems) > MOST_LETTERS else problems


def prove(parser: ArgumentParser, words: list[str]) -> int:
    """Parse the command line, judge, print progress, and write the table after every cell."""
    parser.epilog = __doc__
    parser.add_argument("configs", type=Path, nargs="+", help="config files: what to prove")
    parser.add_argument("--steps", type=int, help="steps of the fp64 training (default: the config's)")
    parser.add_argument("--precision", choices=["fp64", "fp32"], help="instead of the config's")
    parser.add_argument("--task", action="append", help="instead of the config's: a name, or a file (may be repeated)")
    parser.add_argument("--passes", type=int, default=1, help="how often to judge every cell")
    parser.add_argument("--limit-seconds", type=float, help="a gate that takes longer is ended, and has failed")
    parser.add_argument("--strategy", action="append", help="only this strategy (may be repeated)")
    parser.add_argument("--share-gpu", action="store_true", help="on one GPU, ranks take turns on it")
    parser.add_argument("--folder", type=Path, default=Path("results/proof"), help="where everything goes")
    given = parser.parse_args(words)
    if given.passes < 1:
        raise UserError(f"--passes: {given.passes} is not allowed; allowed: at least 1")
    if given.limit_seconds is not None and given.limit_seconds <= 0:
        raise UserError(f"--limit-seconds: {given.limit_seconds:g} is not allowed; allowed: more than 0")
    os.environ[lifeline.DRIVER] = lifeline.mark(given.folder.resolve())  # gates are forks of one process
    to_prove = list(proofs(given))
    count = given.passes * sum(len(proof.gates) for proof in to_prove)
    if not count:
        raise UserError(f"nothing to prove in {', '.join(map(str, given.configs))}: all is skipped, or left out")
    for lock in sorted({lock_of(ROOT, gate.stack) for proof in to_prove for gate, _ in proof.gates}):
        if overlay.place(lock):
            overlay.make(lock)
    rows: list[dict[str, Any]] = []
    for row in (row for number in range(1, given.passes + 1) for proof in to_prove for row in proof.cells(number)):
        rows.append(row)
        verdict = "equivalent" if row["equivalent"] else refusing([shortened(row["problems"])])
        if why := row["not proven because"]:
            verdict = f"not proven, because {why}"
        named = (row[name] for name in ("task", "strategy", "options", "precision"))
        cell = f"{', '.join(filter(None, named))} on {row['processes']}"
        print(f"{len(rows)}/{count} {cell}: {verdict}, {row['seconds']} s", flush=True)
        table = pd.DataFrame(rows)
        table.to_csv(given.folder / "table.csv", index=False)
        (given.folder / "table.md").write_text(markdown(table), encoding="utf-8")
    failed = sum(not row["equivalent"] for row in rows)
    print(f"{counted(len(rows), 'cell')}, {failed} failed: {given.folder / 'table.md'}")
    return int(failed > 0)
