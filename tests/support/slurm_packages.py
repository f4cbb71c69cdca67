"""What the Slurm tests need on this machine: installed from Debian's packages where it is missing."""

import os
from collections.abc import Mapping

import debian_packages
from relay.virtual_cluster import cluster
from relay.virtual_cluster.cluster import PACKAGES


def require(packages: Mapping[str, str] = PACKAGES) -> None:
    """Install missing `packages` (command → package) or skip the test, with a warning, where that is impossible."""
    if what := obstacle(packages):
        debian_packages.skip(f"the Slurm tests were NOT run: {what}")


def obstacle(packages: Mapping[str, str] = PACKAGES) -> str:
    """Install missing packages; returns what stands in the way of a virtual cluster, or nothing."""
    if os.geteuid():
        return "a virtual cluster needs root"
    return debian_packages.obstacle(packages) or cluster.obstacle(packages)
