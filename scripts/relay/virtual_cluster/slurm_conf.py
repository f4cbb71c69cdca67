"""The configuration of a virtual cluster: what its nodes and partitions claim, as Slurm's files say it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Node:
    """What a virtual node claims to have; nothing confines its jobs to that."""

    name: str
    cpus: int = 8
    memory_mb: int = 16000
    gpus: int = 0
    gpu_type: str = "fake"


@dataclass(frozen=True)
class Partition:
    name: str
    nodes: tuple[str, ...]
    max_minutes: int = 120
    default: bool = False
    whole_nodes: bool = False


@dataclass(frozen=True)
class Host:
    """Where a daemon is reached: by a host's name, which it must bear itself, and at an address."""

    name: str
    address: str


SETTINGS = """\
ClusterName=mini
SlurmctldHost={controller.name}({controller.address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# cred_expire is also how long a requeued job waits before it may start again.
AuthInfo=socket={folder}/run/munge.sock,cred_expire=10
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
TaskProlog={folder}/bin/task_prolog
Epilog={folder}/bin/epilog
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
EnforcePartLimits=ALL
GresTypes=gpu
MpiDefault=none
# A node that was set down stays down until it is resumed; one that was lost returns by itself.
ReturnToService=1
# A node may claim more CPUs than this machine has.
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
# Long enough for a process that waits for another one to say where it was. Slurm's own default is 30.
KillWait=10
# Finished jobs stay visible this many seconds.
MinJobAge=600
# Patience: all nodes and their jobs share this machine's few CPUs.
MessageTimeout=30
BatchStartTimeout=60
SlurmdTimeout=60
"""


def slurm_conf(
    folder: Path,
    port: int,
    controller: Host,
    nodes: Sequence[tuple[Node, Host]],
    partitions: Sequence[Partition],
) -> str:
    """The text of slurm.conf; ports from `port` on are taken, one for the controller and one for each node."""
    text = SETTINGS.format(folder=folder, port=port, controller=controller)
    for number, (node, host) in enumerate(nodes, start=port + 1):
        gpus = f" Gres=gpu:{node.gpu_type}:{node.gpus}" if node.gpus else ""
        text += (
            f"NodeName={node.name} NodeHostname={host.name} NodeAddr={host.address} Port={number}"
            f" CPUs={node.cpus} RealMemory={node.memory_mb} State=UNKNOWN{gpus}\n"
        )
    for partition in partitions:
        text += (
            f"PartitionName={partition.name} Nodes={','.join(partition.nodes)} MaxTime={partition.max_minutes}"
            f" DefaultTime={min(10, partition.max_minutes)} Default={'YES' if partition.default else 'NO'} State=UP"
            f"{' OverSubscribe=EXCLUSIVE' if partition.whole_nodes else ''}\n"
        )
    return text


def gres_conf(folder: Path, nodes: Sequence[Node]) -> str:
    """The text of gres.conf: GPU i of every node is the device file gpu{i}, as Slurm counts them."""
    return "".join(
        f"NodeName={node.name} Name=gpu Type={node.gpu_type} File={folder}/gpu[0-{node.gpus - 1}]\n"
        for node in nodes
        if node.gpus
    )
