"""Mini clusters that look like the sites: their partitions, GPU types, CPUs and memory."""

import mini_slurm
from relay.spec.site import Site

DEFAULT = "main"
ENOUGH_MINUTES = 120


def site_nodes(site: Site) -> tuple[list[mini_slurm.Node], list[mini_slurm.Partition]]:
    """What a site's file promises, with a node of each kind; its nameless partitions are Slurm's default."""
    nodes: list[mini_slurm.Node] = []
    members: dict[str, list[str]] = {}
    minutes: dict[str, int] = {}
    whole: dict[str, bool] = {}
    for kind, p in enumerate(site.partitions):
        partition = p.name or DEFAULT
        whole[partition] = whole.get(partition, True) and p.whole_nodes
        minutes[partition] = max(minutes.get(partition, 0), p.max_minutes or ENOUGH_MINUTES)
        gpus = {"gpus": p.gpus_per_node, "gpu_type": p.gpu_name or "fake"}
        memory_mb = p.memory_mb_per_node or 4 * 64_000
        nodes.append(mini_slurm.Node(f"{p.device}{kind}", cpus=p.cpus_per_node, memory_mb=memory_mb, **gpus))
        members.setdefault(partition, []).append(nodes[-1].name)
    # As on many real clusters, one is the default, whether the site's file goes there or not.
    default = DEFAULT if DEFAULT in members else next(iter(members))
    return nodes, [
        mini_slurm.Partition(
            name, tuple(names), max_minutes=minutes[name], default=name == default, whole_nodes=whole[name]
        )
        for name, names in members.items()
    ]


def filled_in(site: Site) -> Site:
    """The site after its user has filled in what `missing` asks for."""
    partitions = [p.model_copy(update={"max_minutes": p.max_minutes or ENOUGH_MINUTES}) for p in site.partitions]
    account = {"account": "def-someone"} if site.account_required else {}
    return site.model_copy(update={"partitions": partitions, **account})
