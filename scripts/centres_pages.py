"""What `make schema` makes from docs/pages.yaml: docs/pages.md, where each thing of the centres' pages is."""

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

DATA = "docs/pages.yaml"
STATES = ("works", "in part", "left out")
HEAD = """\
# From a line of a page to where it is

<!-- `make schema` writes this page from docs/pages.yaml. Change that, not this page. -->

Find a line of your [computing centre's page](translating-options.md) on PyTorch, and follow its link. The
numbers are the lines of the page's source. What works is [tested](untested.md) without these clusters. Brackets say
what is left out, or works in part.

"""
# How a thing of each kind is written. A test is a link to its file.
WORDS = {
    "doc": "[{page}]({name})",
    "file": "[`{stem}`](../{name})",
    "key": "[`{name}`](../config/README.md)",
    "site": "[site's `{name}`](../config/sites/README.md)",
    "target": "`snakemake {name}`",
    "strategy": "[`{name}`](strategies.md)",
    "task": "task `{name}`",
    "option": "option `{name}`",
    "variable": "`{name}`",
    "test": "[test](../tests/{file})",
}


def read(root: Path) -> list[dict[str, Any]]:
    """The five pages, as docs/pages.yaml of the project in `root` has them."""
    return list(yaml.safe_load((root / DATA).read_text(encoding="utf-8")))


def shown(thing: str) -> str:
    """A thing, such as `key epochs`, in the words of its kind."""
    kind, name = thing.split(" ", 1)
    file = name.partition("::")[0]
    page = name.partition("#")[2].replace("-", " ") or Path(name).stem
    return WORDS[kind].format(name=name, stem=Path(name).name, file=file, page=page)


def page(root: Path) -> str:
    """The whole page."""
    pages = read(root)
    rows = [row for each in pages for row in each["rows"]]
    counted = Counter(row["state"] for row in rows)
    parts = [HEAD, f"{len(rows)} things: {', '.join(f'{counted[state]} {state}' for state in STATES)}.\n"]
    for each in pages:
        parts.append(f"\n## {each['page']}: {each['title']}\n\n")
        for row in each["rows"]:
            remarks = [row[key] for key in ("state", "note") if row.get(key, "works") != "works"]
            what = f"{row['what']} ({': '.join(remarks)})" if remarks else row["what"]
            parts.append(f"- **{row['lines']}** {what}: {', '.join(map(shown, row['where']))}\n")
    return "".join(parts)
