"""Mini clusters that look like the sites: their partitions, GPU types, CPUs and memory."""

from pathlib import Path

import yaml

import mini_slurm
from relay.spec.site import Site

DEFAULT = "main"
ENOUGH_MINUTES = 120


def site_nodes(site: Site, each: int = 1) -> tuple[list[mini_slurm.Node], list[mini_slurm.Partition]]:
    """What a site's file promises, with `each` nodes of a kind; its nameless partitions are Slurm's default."""
    nodes: list[mini_slurm.Node] = []
    members: dict[str, list[str]] = {}
    minutes: dict[str, int] = {}
    whole: dict[str, bool] = {}
    for kind, p in enumerate(site.partitions):
        partition = p.name or DEFAULT
        whole[partition] = whole.get(partition, True) and p.whole_nodes
        minutes[partition] = max(minutes.get(partition, 0), p.max_minutes or ENOUGH_MINUTES)
        for number in range(each):
            nodes.append(
                mini_slurm.Node(
                    f"{p.device}{kind}{number}",
                    cpus=p.cpus_per_node,
                    memory_mb=p.memory_mb_per_node or 4 * 64_000,
                    gpus=p.gpus_per_node,
                    gpu_type=p.gpu_name or "fake",
                )
            )
            members.setdefault(partition, []).append(nodes[-1].name)
    # As on many real clusters, one is the default, whether the site's file goes there or not.
    default = DEFAULT if DEFAULT in members else next(iter(members))
    return nodes, [
        mini_slurm.Partition(
            name, tuple(names), max_minutes=minutes[name], default=name == default, whole_nodes=whole[name]
        )
        for name, names in members.items()
    ]


def filled_in(site: Site, *, account: str | None = "def-someone") -> Site:
    """The site after its user has filled in what `missing` asks for."""
    partitions = [p.model_copy(update={"max_minutes": p.max_minutes or ENOUGH_MINUTES}) for p in site.partitions]
    changed = {"account": account, "account_required": account is not None and site.account_required}
    return site.model_copy(update={"partitions": partitions, **(changed if site.account_required else {})})


def written(site: Site, file: Path) -> Path:
    """The site as a file of a user's own."""
    file.write_text(yaml.safe_dump(site.model_dump(), allow_unicode=True, sort_keys=False), encoding="utf-8")
    return file
