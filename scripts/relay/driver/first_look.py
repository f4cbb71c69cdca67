"""What is wrong with a call's words and files, in one line, before Snakemake reads them.

Snakemake answers such mistakes with a traceback, or with its whole list of options.
"""

import argparse
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import MISSING
from importlib.util import find_spec
from pathlib import Path

import snakemake

from relay.base.errors import UserError
from relay.config.reading import check_arguments
from relay.driver import full_disk
from relay.spec.messages import near, show

NO_PROFILE = re.compile(r"profile directory given \((.*)\), but no ")
UNKNOWN = re.compile(r"unrecognized arguments: (--[\w-]+)")
DRY = re.compile(r"-[eFkpqRT]*n[eFkpqRT]*")  # alone, or among letters of options without a value
LISTING = re.compile(r"-[eFkpqRTn]*l|--lt|--list(-rules|-target-rules)?")
READ_FIRST = (
    "Planning runs files of the config's author, also with -n: the task's, strategies' `needs`. Read them first."
)
JUDGED = "results are judged by what they hold; their times do not matter, and `--forcerun RULE` makes some anew"
# Options with which Snakemake would not do here what its help says, as its parser names them, and why.
UNSERVED = {
    "archive": "it packs no results; pack the folder by tar: it can be unpacked anywhere, and the next call goes on",
    "containerize": "environments are made from envs/*.txt, and not by conda",
    "export_cwl": "CWL has no chains of jobs",
    "delete_all_output": "it would leave half of each training; to begin anew, move the folder results away",
    "generate_unit_tests": "`make test` runs this project's tests",
    "target_jobs": "the names in it are made by the plan; give a target, and --until RULE",
    "touch": JUDGED,
    "trust_io_cache": "it reads a pickle, which can run code, and saves no time here",
}
RUNS_TABLE = Path("results/runs.csv")
SNAKEFILE = Path(__file__).parents[3] / "Snakefile"
TARGETS = re.compile(r"(?m)^#   (snakemake --profile .*)$")  # in the Snakefile: those for users, in words
LEAST_SNAKEMAKE = (9, 23)  # with the parts of its logging that `relay.driver.terminal` is made of
SEEN = "snakemake --help lists Snakemake's options"


def check(arguments: Sequence[str]) -> None:
    """End the process with one line where Snakemake would not take these arguments, or could not read what they name.

    For the process of Snakemake's command line itself, whose `sys.argv` gets what this project adds to each call.
    """
    full_disk.show_no_tracebacks_of_logs()
    os.umask(os.umask(0o077) | 0o022)  # before anything is written: others could change it else
    if tuple(map(int, snakemake.__version__.split(".")[:2])) < LEAST_SNAKEMAKE:
        least = ".".join(map(str, LEAST_SNAKEMAKE))
        sys.exit(f"error: snakemake: {snakemake.__version__} is not allowed; allowed: {least} or newer: `make install`")
    if problem := of_another_version(SNAKEFILE.parent):
        sys.exit(f"error: {problem}")
    try:
        given = parsed(arguments)
    except UserError as error:
        sys.exit(f"error: {error}")
    shared = {usage.name for usage in given.shared_fs_usage}
    if "SOURCE_CACHE" in shared and (problem := full_disk.no_cache()):
        sys.exit(f"error: {problem}")
    if any(map(LISTING.fullmatch, arguments)):
        print(*TARGETS.findall(SNAKEFILE.read_text(encoding="utf-8")), "all rules:", sep="\n", flush=True)
    if given.targets == ["status"] and given.cores is None and given.jobs is None:
        sys.argv.insert(1, "--cores=1")  # it runs nothing, and Snakemake asks for a number all the same
    if not given.logger:
        sys.argv.insert(1, "--logger=torch-relay")


def of_another_version(root: Path) -> str:
    """What is wrong where Snakemake finds plugins that are not those of this checkout: of two that share a .venv."""
    for kind in ("executor", "logger", "scheduler"):
        name = f"snakemake_{kind}_plugin_torch_relay"
        spec, own = find_spec(name), root / "workflow" / "plugins" / name / "__init__.py"
        if spec and spec.origin and Path(spec.origin).read_bytes() != own.read_bytes():
            other = Path(spec.origin).parents[3]
            return f"{sys.prefix}: is installed for another version, in {other}: run `make install` in {root}"
    return ""


def dry(arguments: Sequence[str]) -> bool:
    """Whether these arguments ask Snakemake to run nothing. It tells by itself only after it has read the Snakefile."""
    return any(word in ("--dry-run", "--dryrun") or DRY.fullmatch(word) for word in arguments)


def only_reads(arguments: Sequence[str]) -> bool:
    """Whether these arguments ask Snakemake for a list, or for how far all is: such a call runs no task's file."""
    return any(word == "status" or LISTING.fullmatch(word) for word in arguments)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Snakemake's own reading of its command line, the profile included; its config files and values are checked.

    Raises UserError for what Snakemake would not take, and SystemExit where it would end without a mistake (`--help`).
    """
    from snakemake.cli import SNAKEFILE_CHOICES, parse_args

    said = io.StringIO()
    try:
        with redirect_stderr(said):
            _, given = parse_args(list(arguments))
    except SystemExit as ended:
        if ended.code:
            raise UserError(_in_a_line(said.getvalue(), arguments)) from None
        if {"-h", "--help"} & {*arguments}:
            with suppress(BrokenPipeError):  # of `snakemake --help | head`
                print(READ_FIRST)
        raise
    except Exception as error:
        raise UserError(f"{_option_of(error)}: {_joined(str(getattr(error, 'msg', error)))}; {SEEN}") from None
    if given.directory and Path(given.directory).exists() and not Path(given.directory).is_dir():
        raise UserError(f"--directory: {show(str(given.directory))} is a file; allowed: a folder")
    for option, why in _refused(given):
        raise UserError(f"{option}: is not allowed, because {why}")
    for rule, threads in (given.set_threads or {}).items():
        if not str(threads.raw).isdecimal() or not int(threads.raw):
            raise UserError(f"--set-threads: {rule}={threads.raw} is not allowed; allowed: a whole number from 1 on")
    check_arguments(given.configfile or [], given.config or [])
    if not given.snakefile and not any(path.exists() for path in SNAKEFILE_CHOICES):
        raise UserError(f"--snakefile: is missing, and {Path.cwd()} has no Snakefile; give --snakefile {SNAKEFILE}")
    return given


def _refused(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Options with which Snakemake would not do what their user expects: why, and what to use instead."""
    from snakemake.settings.enums import RerunTrigger

    for name, why in UNSERVED.items():
        if getattr(given, name):
            yield f"--{name.replace('_', '-')}", why
    if given.rerun_triggers != RerunTrigger.all():
        yield "--rerun-triggers", JUDGED
    if given.report and not given.report_after_run and not (Path(given.directory or "") / RUNS_TABLE).exists():
        yield "--report", f"{RUNS_TABLE} is missing: nothing is compared yet; first give the same call without it"
    if given.executor == "torch-relay":
        for name in (name for name, value in vars(given).items() if name.startswith("slurm_") and value is not MISSING):
            option = name.replace("_", "-")
            yield f"--{option}", f"executor torch-relay has --{option.replace('slurm', 'torch-relay', 1)} in its place"
    if given.batch and given.batch.rulename != "comparison":
        yield "--batch", "only `comparison` has the runs as its inputs; allowed: comparison=1/2"


def _in_a_line(said: str, arguments: Sequence[str]) -> str:
    """Snakemake's complaint without the list of its options; what may be meant where a name is unknown."""
    words = _joined(re.split(r"(?m)^(?:\S+: )?[Ee]rror: ", said)[-1])
    if profile := NO_PROFILE.search(words):
        given = profile.group(1)
        own = SNAKEFILE.parent / "profiles"
        here = [*Path("profiles").glob("*/")] or [own / Path(given).name]
        ready = sorted(str(folder) for folder in (here if here[0].is_dir() else own.glob("*/")))
        allowed = f"{near(given, ready, likeness=0.4)}allowed: {', '.join(ready)}"
        return f"--profile: {show(given)} is no folder with a config.yaml; {allowed}"
    if option := UNKNOWN.search(words):
        from snakemake.cli import get_argument_parser

        named = [name for action in get_argument_parser()._actions for name in action.option_strings]
        meant = near(option.group(1), [name for name in named if name.startswith("--")], likeness=0.75)
        where = "" if any(word.startswith(option.group(1)) for word in arguments) else ", which the profile gives,"
        return f"option {option.group(1)}{where} is unknown; {meant}{SEEN}"
    return words


def _option_of(error: BaseException) -> str:
    """The option whose value was being read when the error came, as argparse's own frames know it."""
    trace, option = error.__traceback__, "snakemake"
    while trace:
        option = str(trace.tb_frame.f_locals.get("option_string") or option)
        trace = trace.tb_next
    return option


def _joined(text: str) -> str:
    return " ".join(text.split())
