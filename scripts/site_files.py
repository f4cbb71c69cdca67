"""What `make schema` makes from the sites: their JSON schema, `config/sites/README.md`, and a profile for each."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from relay.base.grouped import grouped
from relay.spec.messages import describe
from relay.spec.site import Site, load_site, names
from relay.spec.site_blocks import Partition

BASE = Path("profiles/slurm/config.yaml")
BASE_SITE = "generic"
SITE_LINE = "  - site='{}'\n"

# What is allowed, shorter than in messages: a table is looked up, not read.
SHORT = {
    "a whole number of at least ": "integer ≥ ",
    "a number of at least ": "number ≥ ",
    "a number greater than ": "number > ",
    " and of at most ": ", ≤ ",
    " and less than ": ", < ",
    ", each ": " of ",
    ", or a list of these": " (or a list)",
    "a block of names and values": "a block",
}
WIDTH = 110

PROFILE_HEAD = """\
# {description}: snakemake --profile profiles/{name}
# `make schema` writes this file from profiles/slurm and config/sites/{name}.yaml. Change those, not this file.
"""

README_HEAD = """\
# Clusters

<!-- `make schema` writes this page from scripts/relay/spec/site.py. Change that, not this page. -->

Each file here describes one cluster, and no other file does. [Sites](../../docs/sites.md) shows how to write one, and
says how far you can trust the ready ones. The "documents" are the [centres' pages](../../docs/pages.md).
"""


def written(value: Any) -> str:
    """A value as one would write it in YAML."""
    text = yaml.safe_dump(_plain(value), default_flow_style=True, sort_keys=False, width=WIDTH)
    return text.removesuffix("...\n").rstrip("\n")


def _plain(value: Any) -> Any:
    """A default as one would write it: 20 for 20.0."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def sections(model: type[BaseModel], **first: type[BaseModel]) -> list[str]:
    """A section for each block of a model: for these, and for each key whose default is a block."""
    defaults = {name: field.default for name, field in model.model_fields.items()}
    blocks = {name: type(default) for name, default in defaults.items() if isinstance(default, BaseModel)}
    parts = []
    for title, block in (first | blocks).items():
        parts += [f"## `{title}`\n", f"{' '.join((block.__doc__ or '').split())}\n", table(block, model)]
    return parts


def schema_json(model: type[BaseModel]) -> str:
    """A model's JSON schema for editors."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def readme(root: Path) -> str:
    """The ready sites, and every key, as tables."""
    parts = [README_HEAD, "## Ready\n", _ready(root), "## Keys\n", table(Site, Site)]
    return "\n".join([*parts, *sections(Site, partitions=Partition)])


def _ready(root: Path) -> str:
    """The ready sites; how far they were tried stands once for all with the same words."""
    sites = [load_site(name, root) for name in names(root)]
    rows = ["| site | cluster | environment | before `make install` |", "| --- | --- | --- | --- |"]
    for site in sites:
        mode, after = site.environment.mode, site.environment.install_after
        before = f"`{after}`" if after else ""
        rows.append(f"| `{site.name}` | {site.description} | {mode} | {before} |")
    rows += ["", "| sites | how far they were tried |", "| --- | --- |"]
    for verified, same in grouped(sites, lambda site: site.verified).items():
        rows.append(f"| {', '.join(f'`{site.name}`' for site in same)} | {verified} |")
    return "\n".join(rows) + "\n"


def table(block: type[BaseModel], whole: type[BaseModel]) -> str:
    """The keys of a block of the model `whole`, as a table. A key whose default is a block has a table of its own."""
    schema = whole.model_json_schema()
    properties = schema["properties"] if block is whole else schema["$defs"][block.__name__]["properties"]
    rows = ["| key | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    for name, field in block.model_fields.items():
        default = field.get_default(call_default_factory=True)
        allowed = describe(properties[name], schema)
        for words, short in SHORT.items():
            allowed = allowed.replace(words, short)
        if field.is_required():
            shown = "required"
        elif isinstance(default, BaseModel) or name in ("comparisons", "partitions"):
            shown, allowed = "below", "see below"
        else:
            shown = f"`{written(default[0] if isinstance(default, list) and default else default)}`"
        rows.append(f"| `{name}` | {shown} | {allowed} | {field.description} |")
    return "\n".join(rows) + "\n"


def profile(base: str, site: Site) -> str:
    """The profile of a site: `base`, the text of profiles/slurm, with another site and a header of its own."""
    _, begin, settings = base.partition("\nexecutor:")  # its first comment is about itself
    old = SITE_LINE.format(BASE_SITE)
    if settings.count(old) != 1:
        raise ValueError(f"{BASE}: holds the lines '{old.rstrip()}' {settings.count(old)} times, not once")
    settings = begin.lstrip() + settings.replace(old, SITE_LINE.format(site.name))
    if most := site.limits.jobs:
        settings = re.sub(r"(?m)^jobs: (\d+)$", lambda jobs: f"jobs: {min(most, int(jobs[1]))}", settings)
    description = site.description[0].upper() + site.description[1:]
    return PROFILE_HEAD.format(description=description, name=site.name) + settings


def generated(root: Path) -> dict[str, str]:
    """Every generated file's text by its path from the project's folder `root`, which is read."""
    base = (root / BASE).read_text(encoding="utf-8")
    sites = [load_site(name, root) for name in names(root)]
    profiles = {f"profiles/{s.name}/config.yaml": profile(base, s) for s in sites if s.name != BASE_SITE}
    return {"workflow/schemas/site.schema.json": schema_json(Site), "config/sites/README.md": readme(root), **profiles}
