"""The command line `relay`: its subcommands, each imported only when it is asked for."""

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from relay.base import entry
from relay.base.errors import UserError

USAGE = """\
usage: relay COMMAND [options]

The comparison itself is Snakemake's: `snakemake --profile profiles/local`. `relay COMMAND --help` tells a command's
options.
"""
# By command: its module in this package, whose function has the command's name, with _ for -; and what it does.
YOURS = {
    "adopt": ("runs", "let a planned run go on from another run's newest checkpoint"),
    "card": ("card", "look at a task, and tell what was seen of it"),
    "cards": ("card", "make the cards of the built-in tasks anew"),
    "compare-results": ("compare_results", "compare two folders of results, such as before and after a maintenance"),
    "drive": ("drive", "run the driver so that it lasts: in tmux, or as a small Slurm job"),
    "export": ("runs", "write the final model of a finished run as safetensors"),
    "new": ("new", "begin a task or a strategy of your own: two files that run as they are"),
    "prove": ("prove", "put every strategy of a config through its equivalence gate on this machine"),
    "train-again": ("train_again", "train runs again, from their first step"),
    "virtual-cluster": ("virtual_cluster", "have a Slurm cluster of virtual nodes on this machine, to try things on"),
}
OF_JOBS = {
    "compare": ("compare", "make the comparison: answer, tables, pictures and page"),
    "dataset": ("prepare", "prepare a task's data"),
    "environment": ("prepare", "do what the login node has to do for a stack's environment, and record it"),
    "gate": ("jobs", "judge whether a strategy trains as its reference does"),
    "largest-model": ("jobs", "search for the largest model that fits"),
    "libtorch": ("jobs", "run a trained model in C++, or the smallest program where no run is named"),
    "look": ("jobs", "look at a task where only a node has what it needs"),
    "measure-speed": ("jobs", "measure what a step of a setting takes"),
    "preflight": ("jobs", "find out what is wrong with a node, or show what preflights have found"),
    "probe": ("jobs", "search for the largest batch that fits"),
    "reference": ("jobs", "train the reference that gates compare with"),
    "selftest": ("jobs", "do one part of the self-test: a killed run, or a planted fault"),
    "show-comparison": ("compare", "print the comparison in the terminal"),
    "spot-check": ("jobs", "compute steps of finished runs again in one process"),
    "start": ("runs", "put aside what an older start of a run has trained"),
    "summarise": ("runs", "write the summary of a finished run"),
    "train": ("jobs", "train one segment of a run"),
}
COMMANDS = YOURS | OF_JOBS


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are one line, as all others are."""

    def error(self, message: str) -> NoReturn:
        shown = re.sub(r"^(argument {.*) \(choose from .*\)$", r"\1", message)  # in braces is what is for users
        raise UserError(f"{self.prog}: {shown}; `{self.prog} --help` has all")


def main() -> None:
    """Exit with the command's status; a mistake is one line."""
    entry.run(lambda: start(sys.argv[1:]))


def start(words: Sequence[str]) -> int:
    """Run a command with its options; its exit status. Raises UserError."""
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        print(USAGE + _listed("yours", YOURS) + _listed("the workflow's jobs, which can be tried by hand", OF_JOBS))
        return 0
    if name not in COMMANDS:
        from relay.spec.messages import show, unknown

        raise UserError(unknown(f"relay: {show(name)} is no command", name, COMMANDS))
    module, description = COMMANDS[name]
    parser = Parser(f"relay {name}", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.description = f"{description[0].upper()}{description[1:]}."
    command = getattr(import_module(f"{__name__}.{module}"), name.replace("-", "_"))
    return int(command(parser, list(words[1:])))


def _listed(title: str, commands: dict[str, tuple[str, str]]) -> str:
    return f"\n{title}:\n" + "".join(f"  {name:16} {description}\n" for name, (_, description) in commands.items())
