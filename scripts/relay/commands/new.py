"""Begins a task or a strategy of one's own."""

import importlib.util
import keyword
import re
from argparse import ArgumentParser
from pathlib import Path

from relay.base.entry import ROOT
from relay.base.errors import UserError
from relay.spec import strategy_files
from relay.spec.tasks import built_in

TEMPLATES = ROOT / "workflow" / "templates"
STRATEGIES = Path("own_strategies")
NEXT = {
    "task": """
  snakemake card --profile profiles/local --configfile {config}   # what is seen of it, and what that means
  snakemake      --profile profiles/local --configfile {config}   # the comparison""",
    "strategy": """
  relay prove {config} --steps 20                                        # a short proof
  snakemake equivalence --profile profiles/local --configfile {config}   # the whole gate
  snakemake             --profile profiles/local --configfile {config}   # the comparison""",
}


def new(parser: ArgumentParser, words: list[str]) -> int:
    """Write the two files, and say what to do next. Raises UserError for a name, and for files that are there."""
    parser.add_argument("kind", choices=NEXT)
    parser.add_argument("name", help="lower-case letters, digits and _")
    options = parser.parse_args(words)
    check_name(options.kind, options.name)
    config, code = Path(f"{options.name}.yaml"), Path(f"{options.name}.py")
    files = {
        f"{options.kind}.py": STRATEGIES / code if options.kind == "strategy" else code,
        f"{options.kind}.yaml": config,
    }
    for file in files.values():
        if file.exists():
            raise UserError(f"NAME: '{options.name}': {file} is there already; allowed: a name without files")
    for template, file in files.items():
        file.parent.mkdir(exist_ok=True)
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text.replace("NAME", options.name).replace("CLASS", options.name.title().replace("_", "")))
    print(f"Made {' and '.join(map(str, files.values()))}, which run as they are.")
    print(f"Next:{NEXT[options.kind].format(config=config)}")
    return 0


def check_name(kind: str, name: str) -> None:
    """Raise UserError for a name that could not be imported, or that something else has."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UserError(f"NAME: '{name}' is not allowed; allowed: lower-case letters, digits and _, a letter first")
    taken = name in strategy_files.find([]) if kind == "strategy" else name.replace("_", "-") in built_in()
    if taken:
        raise UserError(f"NAME: '{name}' is not allowed, a built-in {kind} has this name; allowed: another one")
    if not Path(f"{name}.py").exists() and importlib.util.find_spec(name) is not None:
        raise UserError(
            f"NAME: '{name}' is not allowed, it is a package's name, which would hide that; allowed: another one"
        )
