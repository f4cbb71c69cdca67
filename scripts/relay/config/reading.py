"""The config that a call is given: its files, read strictly, and what `--config` says on top of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.spec import yaml_file
from relay.spec.messages import show

# Snakemake runs what stands in a file with this key (yte), also in a dry run.
TEMPLATE = "__use_yte__"
WORDS = {"true": True, "false": False, "null": None}


def read_config(file: Path, shown: str | None = None) -> dict[str, Any]:
    """The keys and values of a config file. Raises UserError with one line that names the file (as `shown`)."""
    shown = shown or str(file)
    raw = yaml_file.read_block(file, shown)
    if TEMPLATE in raw:
        raise UserError(f"{shown}: {TEMPLATE}: is not allowed, because reading the file would run it; allowed: values")
    return raw


def given_config(workflow: Any, defaults: Path) -> dict[str, Any]:
    """What Snakemake's `config` holds, with the numbers as they are written in the files.

    `workflow` is Snakemake's, `defaults` the file that the Snakefile names. The order is Snakemake's: the defaults,
    the files of `--configfile`, the values of `--config`. Raises UserError for a file with a mistake.
    """
    settings = workflow.config_settings
    own = [] if settings.replace_workflow_config else [defaults]
    config: dict[str, Any] = {}
    for file in [*own, *map(Path, settings.configfiles)]:
        shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
        config = _merged(config, read_config(file, str(shown)))
    return _merged(config, {name: _word(value) for name, value in settings.config.items()})


def _merged(block: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A block with what is given on top: blocks key by key. Snakemake's own way takes `{}` for nothing."""
    both_blocks = {key for key, value in given.items() if isinstance(value, dict) and isinstance(block.get(key), dict)}
    return {**block, **given, **{key: _merged(block[key], given[key]) for key in both_blocks}}


def _word(value: Any) -> Any:
    """A value of `--config`. Snakemake takes only `True` for true, and everything else that is no number for text.

    Within a block or a list it takes numbers for text, too.
    """
    if isinstance(value, dict):
        return {name: _within(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_within(each) for each in value]
    return WORDS.get(value, value) if isinstance(value, str) else value


def _within(value: Any) -> Any:
    number = yaml_file.number(value) if isinstance(value, str) else None
    return _word(value) if number is None else number


def check_arguments(files: Sequence[str | Path], values: Sequence[str]) -> None:
    """Refuse in one line what Snakemake's own command line answers with a traceback.

    `files` are those of `--configfile`, `values` the words of `--config`. Raises UserError.
    """
    for file in map(Path, files):
        if not file.exists() and not file.suffix and len(file.parts) == 1:
            remedy = "a target has to stand before --configfile, which takes all words after it for files"
            raise UserError(f"--configfile: there is no file {show(str(file))}; {remedy}")
        read_config(file)
    for word in values:
        _check_word(word)


def _check_word(word: str) -> None:
    from snakemake.cli import parse_config

    name, sign, value = word.partition("=")
    if not sign:
        raise UserError(f"--config: {show(word)} has no value; allowed: NAME=VALUE")
    try:
        parse_config([word])
    except Exception:
        block, _, key = name.partition(".")
        allowed = f"'{block}={{{key}: {value}}}' for a key of a block" if block and key else "a key of the config"
        raise UserError(f"--config: {show(name)} is not allowed as a name; allowed: {allowed}") from None
