"""Snakemake's command line in forks of a process that has imported it: importing is half of what a dry run costs.

A fork has its own command line, folder, environment and output, as `python -m snakemake` has. Drivers that tests signal
or kill are processes of their own, by `subprocess`.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile

import yaml

import preloaded

ROOT = Path(__file__).resolve().parents[2]


def called(
    words: Sequence[object], folder: Path, environment: Mapping[str, str] | None = None, timeout_seconds: float = 600
) -> tuple[int, str]:
    """The exit status of `python -m snakemake WORDS` in a folder, and all that it printed.

    `environment` is this process's where none is given. Raises TimeoutError where it takes longer.
    """
    with NamedTemporaryFile() as output:
        given = (list(map(str, words)), folder, dict(os.environ if environment is None else environment), output.name)
        process = preloaded.forked(_call, *given)
        process.join(timeout_seconds)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"snakemake {' '.join(given[0])}: not over after {timeout_seconds:.0f} s")
        return process.exitcode, Path(output.name).read_text()


def snakemake(folder: Path, config: Mapping[str, object], *arguments: str) -> tuple[int, str]:
    """The exit status of the workflow on a config in a folder, on this machine, and all that it printed."""
    (folder / "mine.yaml").write_text(yaml.safe_dump(config))
    environment = {k: v for k, v in os.environ.items() if k != "SNAKEMAKE_PROFILE"} | {"COLUMNS": "80"}
    words = ["--snakefile", ROOT / "Snakefile", "--profile", ROOT / "profiles/local", *arguments]
    return called([*words, "--configfile", "mine.yaml"], folder, environment)


def _call(words: list[str], folder: Path, environment: dict[str, str], output: str) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in ((0, os.devnull), (1, output), (2, output)):
        os.dup2(os.open(file, os.O_RDWR | os.O_APPEND), number)
    program = find_spec("snakemake.__main__")
    sys.argv, sys.orig_argv = [program.origin, *words], [sys.executable, "-m", "snakemake", *words]
    from snakemake.cli import main

    main()
