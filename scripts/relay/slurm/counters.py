"""What one user may have at once on a cluster, as its file says: each limit is a resource of Snakemake's."""

from dataclasses import dataclass

from relay.spec.site import Site
from relay.spec.site_blocks import COUNTED, Limits, Partition

DRIVER = {"jobs": 1, "nodes": 1, "gpus": 0, "cpus": 1}  # what a driver takes that is a job itself


@dataclass(frozen=True)
class Counter:
    """What is counted (`jobs`, `nodes`, `gpus` or `cpus`), where, and the most that one user may have.

    It is a resource of Snakemake's. Each job adds to it, and none is started that would bring it over the most.
    """

    what: str
    where: str
    most: int

    @property
    def shown(self) -> str:
        """What is counted, in words."""
        return f"{COUNTED[self.what]}{self.where}"


def counters(site: Site, partition: Partition) -> dict[str, Counter]:
    """The counters that a job in the partition adds to, by name: those of the site and of the partition."""
    same = [each.slurms for each in site.partitions].index(partition.slurms)
    scopes = (("user", "", site.limits), (f"user_{same}", f" in {partition.shown}", partition.limits))
    return {
        f"{scope}_{w}": Counter(w, where, most)
        for scope, where, of in scopes
        if of.confirmed
        for w, most in of.stated.items()
    }


def all_counters(site: Site) -> dict[str, Counter]:
    """All counters of the site, by name."""
    return {name: counter for partition in site.partitions for name, counter in counters(site, partition).items()}


def beside_driver(site: Site) -> Site:
    """The site with what is left of a user's limits while the driver is a job, too."""
    own, _ = site.partition_for("cpu", 0, 1, 1)
    taken = own.taken(1, 0, 1) if own else DRIVER

    def left(limits: Limits) -> Limits:
        return limits.model_copy(update={w: max(0, most - taken[w]) for w, most in limits.stated.items()})

    partitions = [
        each.model_copy(update={"limits": left(each.limits)}) if own and each.slurms == own.slurms else each
        for each in site.partitions
    ]
    return site.model_copy(update={"limits": left(site.limits), "partitions": partitions})
