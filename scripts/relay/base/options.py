"""The options that command lines share, each declared once."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "run": {"required": True, "help": "the run's id: a folder below results/runs"},
    "spec": {"type": Path, "required": True, "help": "the specification (.json) that the plan has written"},
    "output": {"type": Path, "required": True, "help": "the file to write"},
    "reference": {"type": Path, "required": True, "help": "the trained reference (.pt)"},
    "dataset": {"type": Path, "required": True, "help": "the prepared dataset's folder"},
    "work": {"type": Path, "required": True, "help": "the run's rolling checkpoints and records"},
    "first": {"type": int, "required": True, "help": "the step at which the segment starts"},
    "last": {"type": int, "required": True, "help": "the step at which the segment ends"},
    "attempt": {"type": int, "default": 1, "help": "1, or more for a retry of the same job"},
    "minutes": {"type": float, "help": "the time limit of a command's job, where no scheduler keeps it"},
    "results": {"type": Path, "default": Path("results"), "help": "the folder of results (default: %(default)s)"},
}


def add(parser: argparse.ArgumentParser, *names: str) -> argparse.ArgumentParser:
    """A command line with these options as well."""
    for name in names:
        parser.add_argument(f"--{name}", **OPTIONS[name])
    return parser


def parser(description: str | None, *names: str, prog: str) -> argparse.ArgumentParser:
    """The command line of a process's role, `prog`, with these options. `description`: its docstring."""
    return add(argparse.ArgumentParser(prog=prog, description=(description or "").splitlines()[0]), *names)
