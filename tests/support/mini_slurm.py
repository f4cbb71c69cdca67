"""The tests' cluster: the virtual one that users have (`relay.virtual_cluster`), with its packages installed."""

from __future__ import annotations

from relay.virtual_cluster.cluster import NODE_DISK, UNFINISHED, usual
from relay.virtual_cluster.cluster import VirtualCluster as MiniSlurm
from relay.virtual_cluster.slurm_conf import Node, Partition
from slurm_packages import require

__all__ = ["NODE_DISK", "UNFINISHED", "MiniSlurm", "Node", "Partition", "require", "usual"]
