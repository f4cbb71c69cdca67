"""Writes what is made from the models of the config and of the sites, and from docs/pages.yaml.

`--check` writes nothing and exits 1 where one of them differs.
"""

import argparse
import sys
import textwrap
from pathlib import Path

from pydantic import BaseModel

import centres_pages
import site_files
from relay.base.errors import UserError
from relay.config.blocks import Segment
from relay.config.comparisons import Comparison
from relay.config.config import Config
from relay.spec.messages import describe
from relay.spec.tasks import Looked, built_in
from site_files import WIDTH, written

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = "workflow/schemas/config.schema.json"
DEFAULTS = "config/config.yaml"
README = "config/README.md"
PAGES = "docs/pages.md"

HEADER = f"""\
# yaml-language-server: $schema=../{SCHEMA}
#
# What to compare: every key with its default. `make schema` writes this file from scripts/relay/config/config.py and
# overwrites changes. Write your own values into a file of your own: snakemake --configfile mine.yaml. It needs only
# what differs. A list in it, such as `comparisons`, replaces the whole list. config/README.md has the keys as tables.
"""

README_HEAD = """\
# What to compare

<!-- `make schema` writes this page from scripts/relay/config/config.py. Change that, not this page. -->

`config.yaml` holds every key with its default. Your own file needs only the keys that differ:

```
snakemake --profile profiles/local --configfile mine.yaml
```

A block in your file is merged key by key. A list, such as `comparisons`, replaces the whole list. Unknown keys and
wrong values are refused before anything runs, each with one line. `snakemake plan` shows what would run, and what it
costs at most.
"""

COMPARISONS = """\
Each entry names a strategy. Every other key is optional. **Axes** take one value or a list, and every combination of
an entry's lists is one setting. If a setting cannot run, the comparison lists it as `skipped`, with the reason: for
example more threads than CPUs, or a global batch that the processes cannot share evenly. If two entries ask for the
same setting, it runs once.
"""

EXAMPLE = """\
```yaml
task: lenet-cifar10
epochs: 10
comparisons:
  - strategy: cpu
    cpus_per_task: [1, 2, 4]
    loader: [resident, dataloader]
    data_workers: 0
  - strategy: ddp
    devices_per_node: [2, 4]
    batch_per_device: 32
    learning_rate_scaling: [none, linear]
    segment: {epochs: 2}
    repeats: 3
```
"""


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, WIDTH - 2, break_on_hyphens=False))


def defaults_yaml() -> str:
    """`config.yaml`: every key with what it means, what is allowed, and its default."""
    default, whole = Config(), Config.model_json_schema()
    parts = [HEADER]
    for name, field in Config.model_fields.items():
        value = getattr(default, name)
        if name == "comparisons":
            entries = "\n".join(f"  - {written(c)}" for c in default.written()[name])
            keys = ", ".join(k for k in Comparison.model_fields if k != "strategy")
            about = f"{_sentence(field.description)} Besides `strategy`: {keys}."
            parts.append(f"{_comment(about)}{name}:\n{entries}\n")
        elif isinstance(value, BaseModel):
            parts.append(_comment(_sentence(field.description)) + f"{name}:\n{_block_yaml(value)}")
        else:
            allowed = describe(whole["properties"][name], whole)
            about = f"{_sentence(field.description)} Allowed: {allowed}."
            parts.append(f"{_comment(about)}{name}: {written(value)}\n")
    return "\n".join(parts)


def _block_yaml(block: BaseModel) -> str:
    """The keys of a block, indented, each with a comment behind it."""
    lines = (
        f"  {name}: {written(getattr(block, name))}  # {field.description}\n"
        for name, field in type(block).model_fields.items()
    )
    return "".join(lines)


def _sentence(text: str | None) -> str:
    assert text, "every key has a description"
    return text[0].upper() + text[1:] + "."


def readme() -> str:
    """`config/README.md`: every key as tables."""
    keys = ["## Keys\n", site_files.table(Config, Config), *site_files.sections(Config, segment=Segment)]
    comparisons = ["## `comparisons`\n", COMPARISONS, site_files.table(Comparison, Config), EXAMPLE]
    return "\n".join([README_HEAD, *keys, *comparisons, "## Tasks\n", _tasks()])


def _tasks() -> str:
    rows = ["| task | data | parameters | optimiser | learning rate | global batch size | options |"]
    rows += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for name in built_in():
        looked = Looked.read(ROOT / f"scripts/relay/tasks/cards/{name}.json")
        t, parameters = looked.task, looked.task.card.parameters
        cells = (
            f"`{t.name}`",
            looked.dataset.name,
            f"{parameters:,}" if parameters else "",
            t.optimizer,
            f"{t.learning_rate:g}",
            t.global_batch_size,
            ", ".join(f"{option}: {written(value)}" for option, value in t.options.items()),
        )
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows) + "\n"


def generated() -> dict[str, str]:
    """Every generated file's text by its path from the project's folder."""
    return {
        SCHEMA: site_files.schema_json(Config),
        DEFAULTS: defaults_yaml(),
        README: readme(),
        **site_files.generated(ROOT),
        PAGES: centres_pages.page(ROOT),
    }


def main() -> int:
    """Write the files, or compare them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    arguments = parser.parse_args()
    try:
        files = generated()
    except UserError as error:  # a mistake in a site's file
        sys.exit(f"error: {error}")
    status = 0
    for name, text in files.items():
        path = arguments.root / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if arguments.check:
            print(f"{name}: is out of step with the code; run 'make schema'", file=sys.stderr)
            status = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
