"""What a command of the config is: its words, the script that it starts, what is frozen with each run; and which axes
act in it.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from relay.base.errors import UserError
from relay.config.comparisons import AXES, Comparison
from relay.config.config import Config
from relay.spec.identity import beside
from relay.spec.messages import near, show
from relay.spec.run import GROUPS
from relay.spec.script import OF_A_JOB, TASK, file_argument, placeholders, started_by_torchrun

PYTHON = re.compile(r"python[0-9.]*")
MOST_FROZEN_BYTES = 10 * 2**20
# What only a shell understands: operators at the edges of a word, and what it replaces anywhere in one.
SHELL = re.compile(r"^\d?[<>|&;]|[;&|]$|\$[A-Za-z_{(]|`")
# The planner imports no script: its text tells what it uses of `relay.chain`, which may be a copied folder `chain`.
IMPORTING = r"^[ \t]*(?:from[ \t]+{0}(?:\.[\w.]+)?[ \t]+import\b|import[ \t]+{0}\b)"
OURS = re.compile(IMPORTING.format("relay"), re.MULTILINE)
COPIED = re.compile(IMPORTING.format("chain"), re.MULTILINE)
STEPPING = re.compile(r"\b(?:relay|chain)\.step\(|import\s[^#\n]*\bstep\b")
CHAINING = re.compile(r"\bresume\b|\bChainCallback\b")
# Axes of a command: those that need no placeholder, those that could change nothing, and the three sizes of a batch.
ACT_BY_THEMSELVES = ("nodes", "devices_per_node", "processes_per_device", "cpus_per_task", "threads", "launcher")
MEAN_NOTHING = ("loader", "learning_rate_scaling")
OF_TASKS = ("task", "task_options", "epochs", "learning_rate", "segment")  # keys of the config
BATCHES = ("global_batch_size", "batch_per_device", "batch_per_process")


@dataclass(frozen=True)
class Command:
    """A comparison's command. `folder` is from where the script imports: its own, or this one for `-m`.

    `files` are the script, and the modules that it imports from there; `place` names the comparison in a mistake.
    `reports_steps` and `keeps_checkpoints`: by `relay.chain`, as the files' texts tell. `trained` is what all commands
    share whose speeds can be compared.
    """

    name: str
    words: tuple[str, ...]
    file: str
    folder: str
    files: tuple[str, ...]
    place: str
    reports_steps: bool
    keeps_checkpoints: bool
    trained: str = TASK


def command_of(comparison: Comparison, index: int) -> Command:
    """What a comparison's command is. Raises UserError, with one line, for one that cannot be."""
    place = f"config: comparisons[{index}].command: "
    try:
        words = _words(comparison.command or "")
        file, folder = _script(words)
        files = {Path(file)} if file else set()
        if file.endswith(".py"):
            files = set().union(*(beside(Path(file), each) for each in _importing_from(Path(folder))))
    except UserError as error:
        raise UserError(f"{place}{error}") from None
    texts = [*_texts_with_chain(files, Path(folder))]
    return Command(
        name=comparison.strategy,
        words=tuple(words),
        file=file,
        folder=folder,
        files=tuple(sorted(map(str, files))),
        place=place,
        reports_steps=any(map(STEPPING.search, texts)),
        keeps_checkpoints=any(map(CHAINING.search, texts)),
    )


def _words(command: str) -> list[str]:
    """The words of a command line. Raises UserError for one that only a shell could start, or that starts nothing."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        why = str(error)[:1].lower() + str(error)[1:]
        raise UserError(f"{show(command)} has {why}; allowed: words as in a shell") from None
    placeholders(words)
    if not words:
        raise UserError("is empty; allowed: a program and its arguments")
    if shell := next((word for word in words if SHELL.search(word)), None):
        raise UserError(f"'{shell}' is for a shell, and none is used; write a script for it, and name that")
    program = words[0]
    if program.rpartition("/")[2] == "srun":
        raise UserError("srun is written by the job; leave it out, and give `launcher: srun`")
    if re.fullmatch(r"[A-Za-z_]\w*=.*", program):
        raise UserError(f"'{program}' sets a variable, which a shell does; write `env {program} …`")
    if program.endswith(".py") and "/" not in program:
        raise UserError(f"{program} is no program; write `python {program}`")
    if "/" in program and "{" not in program:  # others are looked for by the job
        if not Path(program).is_file():
            raise UserError(f"{program}: no such file; allowed: a program, as seen from {Path.cwd()}")
        if not os.access(program, os.X_OK):
            raise UserError(f"{program} is not executable: `chmod +x {program}`, or write `bash {program}`")
    return words


def _texts_with_chain(files: Iterable[Path], folder: Path) -> Iterator[str]:
    """The texts of the files that use `relay.chain`, or a copy of its folder beside them."""
    copied = (folder / "chain" / "sealed.py").is_file()
    for file in files:
        if file.suffix == ".py" and folder / "chain" not in file.parents:
            text = file.read_text(encoding="utf-8", errors="replace")
            if OURS.search(text) or (copied and COPIED.search(text)):
                yield text


def _importing_from(folder: Path) -> list[Path]:
    """From where a script may import: its folder, and those above it up to this one, as many add to its path."""
    above = [] if folder.is_absolute() or ".." in folder.parts else folder.parents
    return [folder, *above]


def _script(words: Sequence[str]) -> tuple[str, str]:
    """The script that a command starts, and from where it imports.

    It is the first word that is a Python file, a module here after `-m`, or the program itself.
    """
    torchrun = started_by_torchrun(words) or 0
    for number, word in enumerate(words[torchrun:], torchrun):
        if word == "-m" and number + 1 < len(words):
            module = Path(*words[number + 1].split("."))
            files = [each for each in (module.with_suffix(".py"), module / "__main__.py") if each.is_file()]
            return (str(files[0]), ".") if files else ("", ".")
        if word.endswith(".py") and not word.startswith("-") and "{" not in word:
            if not Path(word).is_file():
                raise UserError(f"{word}: no such file; allowed: a script, as seen from {Path.cwd()}")
            return word, str(Path(word).parent)
    if PYTHON.fullmatch(words[0].rpartition("/")[2]) and not any(word in ("-c", "-") for word in words[1:]):
        raise UserError(f"'{' '.join(words)}' names no script; allowed: `python train.py`, `python -m train`")
    if "/" in words[0] and Path.cwd() in Path(words[0]).absolute().parents:
        return words[0], str(Path(words[0]).parent)
    return "", "."


def named_files(words: Sequence[str], links: Iterable[str], place: str) -> list[str]:
    """The files that the arguments of a command name, placeholders filled in, and no link leads to.

    Raises UserError for a folder, and for a file that is too large to be copied with each run.
    """
    files, linked = [], [*map(os.path.normpath, links)]
    for word in words[1:]:
        _, path = file_argument(word)
        if not path or Path(path).is_absolute():
            continue
        if any(Path(os.path.normpath(path)).is_relative_to(link) for link in linked):
            continue
        if Path(path).is_dir() and "/" in path:
            raise UserError(
                f"{place}{path} is a folder here, and the command runs in a folder of its own; write its whole path, "
                f"or add links: {{{os.path.normpath(path)}: {path}}}"
            )
        if Path(path).is_file():
            size = Path(path).stat().st_size
            if size > MOST_FROZEN_BYTES:
                raise UserError(
                    f"{place}{path} has {size / 2**20:.0f} MiB, and files that a command names are copied with each "
                    f"run; allowed: {MOST_FROZEN_BYTES // 2**20} MiB. Write its whole path, or name it in `links`"
                )
            files.append(path)
    return files


def commands_of(config: Config) -> dict[str, Command]:
    """The commands of a config, by their names; none where it compares strategies. Raises UserError."""
    commands = [(i, each) for i, each in enumerate(config.comparisons) if each.command is not None]
    if not commands:
        return {}
    if len(commands) < len(config.comparisons):
        strategy = next(i for i, each in enumerate(config.comparisons) if each.command is None)
        raise UserError(
            f"config: comparisons[{strategy}].strategy: {show(config.comparisons[strategy].strategy)} is not allowed "
            f"beside the command of comparisons[{commands[0][0]}]: nobody knows whether both train the same; give "
            "commands a config of their own"
        )
    _check_keys(config)
    by_name: dict[str, Command] = {}
    for index, comparison in commands:
        command = command_of(comparison, index)
        first = by_name.setdefault(command.name, command)
        if (first.words, first.files) != (command.words, command.files):
            where = f"config: comparisons[{index}].name: {show(command.name)} is that of another command already"
            raise UserError(f"{where}; give each command a name")
    for index, comparison in commands:
        _check_axes(comparison, by_name[comparison.strategy], index, config.global_batch_size)
    if _alternatives(config, by_name):
        return by_name
    return {name: replace(each, trained=name) for name, each in by_name.items()}


def _check_keys(config: Config) -> None:
    """Raise UserError for a key of the config that would change nothing in a command."""
    given = {} if config.shrink else config.model_dump(include={*OF_TASKS}, exclude_none=True)
    given |= {"answer.epochs": epochs} if (epochs := config.answer.epochs) else {}
    for name, value in given.items():
        if name not in OF_TASKS or value != Config.model_fields[name].default:
            raise UserError(
                f"config: {name}: {show(value)} is not allowed beside a command, which is measured as it stands; leave "
                "it out, and give the command the options and the length that are meant"
            )


def _alternatives(config: Config, commands: Mapping[str, Command]) -> bool:
    """Whether the speeds of a config's commands can be compared: there is one, or they have a common measure.

    That is what they tell of their speed, or their steps, if a step has as many samples in all of them.
    """
    speed_patterns = [(each.read, commands[each.strategy].reports_steps) for each in config.comparisons]
    batches = {tuple(str(getattr(each, name)) for name in BATCHES[:2]) for each in config.comparisons}
    speeds = all(read.samples_per_second or (samples and not read.step) for read, samples in speed_patterns)
    return len(commands) == 1 or speeds or (all(read.step for read, _ in speed_patterns) and len(batches) == 1)


def _check_axes(comparison: Comparison, command: Command, index: int, batch_of_config: int | None) -> None:
    """Raise UserError for a placeholder that is unknown, and for an axis that would change nothing."""
    place, used = f"config: comparisons[{index}].", placeholders(command.words)
    _check_placeholders(used, comparison.options, place)
    given = {name for name in AXES if getattr(comparison, name) != Comparison.model_fields[name].get_default()}
    by_placeholder = [name for name in AXES if name in given and name not in ACT_BY_THEMSELVES]
    values = {name: getattr(comparison, name) for name in by_placeholder} | comparison.options
    for name, several in values.items():
        if name in MEAN_NOTHING:
            raise UserError(f"{place}{name}: means nothing for a command; leave it out, or give it as one of `options`")
        needed = BATCHES if name in BATCHES else (name,)
        declared_only = name in BATCHES and len(several) == 1  # it says how many samples a step has
        if not {*needed} & {*used} and not declared_only:
            key = f"options.{name}" if name in comparison.options else name
            raise UserError(f"{place}{key}: changes nothing: the command has no {{{name}}}; write it there")
    if comparison.read.step and not ({*BATCHES} & given or batch_of_config):
        raise UserError(f"{place}read.step: needs the samples of a step; give global_batch_size or batch_per_device")


def _check_placeholders(used: Iterable[str], options: Iterable[str], place: str) -> None:
    """Raise UserError for an option that has the name of another placeholder, and for a placeholder that is none."""
    sizes = ("batch_per_process", "processes_per_node", "world_size")
    names = {each.name for _, group in GROUPS for each in fields(group)} - {*MEAN_NOTHING}
    names |= {*BATCHES, *sizes, *OF_A_JOB}
    if shadowed := sorted({*options} & {*AXES, *OF_A_JOB, *BATCHES}):
        what = "a placeholder" if shadowed[0] in OF_A_JOB else "an axis"
        raise UserError(f"{place}options.{shadowed[0]}: is the name of {what} already; give another name")
    allowed = names | {*options}
    for name in used:
        if name not in allowed:
            raise UserError(
                f"{place}command: placeholder {{{name}}} is unknown; {near(name, allowed)}allowed: the name of an "
                f"axis, of one of `options`, {', '.join((*sizes, *OF_A_JOB))}"
            )
