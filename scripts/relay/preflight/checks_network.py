"""Checks of how the ranks find and reach each other, and how fast."""

import ipaddress
from collections.abc import Iterator

from relay.preflight.findings import Facts, Finding, check, listed, stop, warn, who
from relay.run_folder.known_faults import look_up

# Between nodes less than this share of the bandwidth within them. NVLink beside InfiniBand is about 0.1.
LEAST_SHARE = 0.03
LEAST_GPU_GB_PER_SECOND = 2.0  # below it, between nodes with GPUs, the way is Ethernet
MOST_CLOCK_SECONDS = 2.0
# The wrong names that are in use, and the right ones.
MISSPELT = {
    "TORCH_NCCL_ASYNC_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_ASYNC_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_SOCKET_IF_NAME": "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IF_NAME": "GLOO_SOCKET_IFNAME",
    "MASTER_ADDRESS": "MASTER_ADDR",
    "OMP_NUM_THREAD": "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICE": "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOCATOR_CONF": "PYTORCH_CUDA_ALLOC_CONF",
}
SWITCHED_OFF = ("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")


def _loopback(addresses: list[str]) -> bool:
    return any(ipaddress.ip_address(address.split("%")[0]).is_loopback for address in addresses)


@check("backend", prevents_joining=True)
def backend(facts: Facts) -> Iterator[Finding]:
    """A torch that was built without the backend: `Distributed package doesn't have MPI built in`."""
    wanted = facts.run["backend"]
    for rank in facts.telling("torch") if facts.run["world_size"] > 1 else ():
        if (has := rank["torch"].get("backends")) and wanted not in has:
            yield stop(
                f"torch is built without {wanted} for {who(rank)}: it has {listed(has)}",
                "take another `backend`, or a build of torch that has it: see `environment` in the site's file",
            )


@check("rendezvous", prevents_joining=True)
def rendezvous(facts: Facts) -> Iterator[Finding]:
    """An address at which no other node finds rank 0: localhost, or a name that does not resolve."""
    remedy = "set MASTER_ADDR to an address of rank 0's node that the others reach, never to localhost"
    for rank in facts.telling("rendezvous") if facts.run["nodes"] > 1 else ():
        name, addresses = rank["rendezvous"]["name"], rank["rendezvous"]["addresses"]
        if _loopback(addresses):
            there = f"is {listed(addresses)} on {rank['node']}"
            yield stop(f"MASTER_ADDR '{name}' {there}: each node meets itself", remedy)
        if not addresses:
            yield stop(f"MASTER_ADDR '{name}' does not resolve on {rank['node']}", remedy)


@check("network interface", prevents_joining=True)
def interface(facts: Facts) -> Iterator[Finding]:
    """An interface that gloo or NCCL is told to use, and that this node does not have."""
    for rank in facts.ranks:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            text = rank["environment"].get(variable, "")
            if not text or (variable.startswith("NCCL") and facts.run["backend"] != "nccl"):
                continue
            if _missing(variable, text, rank["interfaces"]):
                yield stop(
                    f"{variable} is '{text}', {rank['node']} has {listed(rank['interfaces'], 12)}",
                    "name one of these (`network_interface` in the site's file), or unset it",
                )


def _missing(variable: str, text: str, interfaces: list[str]) -> bool:
    """Whether none of the names fits: NCCL's are beginnings, `=` makes them whole names, `^` leaves them out."""
    if variable.startswith("GLOO"):
        return any(name not in interfaces for name in text.split(","))
    if text.startswith("^"):
        return False
    if text.startswith("="):
        return not any(name in interfaces for name in text[1:].split(","))
    return not any(there.startswith(name) for name in text.split(",") for there in interfaces)


@check("host name", prevents_joining=True)
def host_name(facts: Facts) -> Iterator[Finding]:
    """gloo listens where the host's own name points to: loopback, as some systems have it, shuts other nodes out."""
    for rank in facts.ranks if facts.run["nodes"] > 1 else ():
        addresses, named = rank["addresses"], rank["environment"].get("GLOO_SOCKET_IFNAME")
        if not named and (_loopback(addresses) or not addresses):
            resolution = f"is {listed(addresses)}" if addresses else "does not resolve"
            yield stop(
                f"the name '{rank['host']}' {resolution} on {rank['node']}: gloo would listen on loopback alone",
                "set GLOO_SOCKET_IFNAME (`network_interface` in the site's file) to the interface between the nodes: "
                f"one of {listed([name for name in rank['interfaces'] if name != 'lo'], 12)}",
            )


@check("misspelt variables")
def misspelt(facts: Facts) -> Iterator[Finding]:
    """Variables that nothing reads."""
    for rank in facts.ranks:
        for wrong, right in MISSPELT.items():
            if wrong in rank["environment"]:
                yield warn(f"{wrong} is set, and is no variable of torch or NCCL", f"its name is {right}")


@check("switched off")
def switched_off(facts: Facts) -> Iterator[Finding]:
    """NCCL's fast ways, switched off by a variable that was once set to find an error."""
    for rank in facts.ranks if facts.run["backend"] == "nccl" else ():
        for variable in SWITCHED_OFF:
            if rank["environment"].get(variable, "0") not in ("", "0"):
                yield warn(f"{variable}={rank['environment'][variable]} is set", "unset it: NCCL takes a slower way")


@check("transport")
def transport(facts: Facts) -> Iterator[Finding]:
    """NCCL on sockets although the nodes have InfiniBand: four nodes are then as slow as one."""
    logs = [rank["nccl"] for rank in facts.telling("nccl")]
    ways = {way for log in logs for way in log["via"]}
    sockets = "NET/Socket" in ways or (not ways and any(log["network"] == "Socket" for log in logs))
    for rank in facts.ranks if facts.run["nodes"] > 1 and sockets else ():
        if rank["infiniband"]:
            yield warn(
                f"NCCL talks over sockets, {rank['node']} has InfiniBand ({listed(rank['infiniband'])})",
                "unset NCCL_IB_DISABLE and NCCL_NET; check `ulimit -l` (must be unlimited) and that the container or "
                "environment has libibverbs; NCCL_DEBUG=INFO says why it turned InfiniBand down",
            )


@check("NCCL's warnings")
def nccl_warnings(facts: Facts) -> Iterator[Finding]:
    """What NCCL itself warns of; where the ranks got no further, that is why: its watchdog ends them without a word."""
    for rank in facts.telling("nccl"):
        for line in rank["nccl"].get("warnings", ()):
            if not look_up(line, "nccl"):
                yield (warn if facts.complete else stop)(
                    f"{who(rank)}: {line}",
                    "look it up in NCCL's documentation (Troubleshooting); nccl-*.log has the rest",
                )


@check("all-reduce")
def all_reduce(facts: Facts) -> Iterator[Finding]:
    """Sums that are wrong."""
    for row in facts.allreduce:
        if not row["right"]:
            yield stop(
                f"an all-reduce of {row['bytes']} bytes over {row['processes']} ranks gave wrong sums",
                "with NCCL try NCCL_P2P_DISABLE=1 once: if it is right then, tell your site (often the IOMMU or ACS)",
            )


@check("bandwidth between nodes")
def bandwidth(facts: Facts) -> Iterator[Finding]:
    """Much less between the nodes than within them."""
    across, within = _fastest(facts, "all"), _fastest(facts, "node")
    if across is None or facts.run["nodes"] == 1:
        return
    remedy = (
        "choose the fast interface (`network_interface` in the site's file), or InfiniBand for NCCL; else keep the run "
        "on one node"
    )
    if within and across < LEAST_SHARE * within:
        yield warn(f"{across:.2g} GB/s between nodes, {within:.2g} GB/s within them", remedy)
    elif facts.run["backend"] == "nccl" and across < LEAST_GPU_GB_PER_SECOND:
        yield warn(f"{across:.2g} GB/s between nodes: that is Ethernet", remedy)


def _fastest(facts: Facts, span: str) -> float | None:
    """The bus bandwidth of the all-reduce over all ranks, or within nodes; None where it was not measured."""
    return max((row["bus_gb_per_second"] for row in facts.allreduce if row["span"] == span), default=None)


@check("clocks")
def clocks(facts: Facts) -> Iterator[Finding]:
    """Clocks of nodes that differ: deadlines, and the ages of files by which Snakemake decides, are wrong then."""
    with_clock = facts.telling("clock_ahead_seconds") if len(facts.nodes) > 1 else []
    worst = max(with_clock, key=lambda rank: abs(rank["clock_ahead_seconds"]), default=None)
    if worst and abs(apart := worst["clock_ahead_seconds"]) > MOST_CLOCK_SECONDS:
        yield warn(
            f"the clock of {worst['node']} is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} "
            f"{facts.ranks[0]['node']}'s",
            "tell your site (NTP); until then give `latency-wait` more than that",
        )
