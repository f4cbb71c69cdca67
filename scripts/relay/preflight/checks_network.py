"""Checks of how the ranks find and reach each other, and how fast."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from relay.preflight.findings import Facts, Finding, check, fine, listed, stop, warn, who
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
def backend(facts: Facts) -> Finding | None:
    """A torch that was built without the backend: `Distributed package doesn't have MPI built in`."""
    wanted = facts.run["backend"]
    with_torch = [rank for rank in facts.ranks if (rank.get("torch") or {}).get("backends")]
    if facts.run["world_size"] == 1 or not with_torch:
        return None
    for rank in with_torch:
        if wanted not in (has := rank["torch"]["backends"]):
            return stop(
                f"torch is built without {wanted} for {who(rank)}: it has {listed(has)}",
                "take another `backend`, or a build of torch that has it: see `environment` in the site's file",
            )
    return fine(f"torch is built with {wanted}")


@check("rendezvous", prevents_joining=True)
def rendezvous(facts: Facts) -> Finding | None:
    """An address at which no other node finds rank 0: localhost, or a name that does not resolve."""
    if facts.run["nodes"] == 1:
        return None
    for rank in facts.ranks:
        meeting = rank["rendezvous"]
        if meeting is None:
            continue
        remedy = "set MASTER_ADDR to an address of rank 0's node that the others reach, never to localhost"
        if _loopback(meeting["addresses"]):
            there = listed(meeting["addresses"])
            return stop(f"MASTER_ADDR '{meeting['name']}' is {there} on {rank['node']}: each node meets itself", remedy)
        if not meeting["addresses"]:
            return stop(f"MASTER_ADDR '{meeting['name']}' does not resolve on {rank['node']}", remedy)
    return fine(listed(sorted({rank["rendezvous"]["name"] for rank in facts.ranks if rank["rendezvous"]})))


@check("network interface", prevents_joining=True)
def interface(facts: Facts) -> Finding | None:
    """An interface that gloo or NCCL is told to use, and that this node does not have."""
    named = False
    for rank in facts.ranks:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            text = rank["environment"].get(variable, "")
            if not text or (variable.startswith("NCCL") and facts.run["backend"] != "nccl"):
                continue
            named = True
            missing = _missing(variable, text, rank["interfaces"])
            if missing:
                return stop(
                    f"{variable} is '{text}', {rank['node']} has {listed(rank['interfaces'], 12)}",
                    "name one of these (`network_interface` in the site's file), or unset it",
                )
    return fine("there on all nodes") if named else None


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
def host_name(facts: Facts) -> Finding | None:
    """gloo listens where the host's own name points to: loopback, as some systems have it, shuts other nodes out."""
    if facts.run["nodes"] == 1:
        return None
    for rank in facts.ranks:
        if rank["environment"].get("GLOO_SOCKET_IFNAME"):
            continue
        if _loopback(rank["addresses"]) or not rank["addresses"]:
            resolution = f"is {listed(rank['addresses'])}" if rank["addresses"] else "does not resolve"
            return stop(
                f"the name '{rank['host']}' {resolution} on {rank['node']}: gloo would listen on loopback alone",
                "set GLOO_SOCKET_IFNAME (`network_interface` in the site's file) to the interface between the nodes: "
                f"one of {listed([name for name in rank['interfaces'] if name != 'lo'], 12)}",
            )
    return fine("known on all nodes, or the interface is named")


@check("misspelt variables")
def misspelt(facts: Facts) -> Finding | None:
    """Variables that nothing reads."""
    for rank in facts.ranks:
        for wrong, right in MISSPELT.items():
            if wrong in rank["environment"]:
                return warn(f"{wrong} is set, and is no variable of torch or NCCL", f"its name is {right}")
    return fine("none known")


@check("switched off")
def switched_off(facts: Facts) -> Finding | None:
    """NCCL's fast ways, switched off by a variable that was once set to find an error."""
    for rank in facts.ranks if facts.run["backend"] == "nccl" else ():
        for variable in SWITCHED_OFF:
            if rank["environment"].get(variable, "0") not in ("", "0"):
                return warn(f"{variable}={rank['environment'][variable]} is set", "unset it: NCCL takes a slower way")
    return None


@check("transport")
def transport(facts: Facts) -> Finding | None:
    """NCCL on sockets although the nodes have InfiniBand: four nodes are then as slow as one."""
    logs = [rank for rank in facts.ranks if rank.get("nccl")]
    if not logs:
        return None
    ways: set[str] = set().union(*(rank["nccl"]["via"] for rank in logs))
    networks = {rank["nccl"]["network"] for rank in logs} - {None}
    sockets = "NET/Socket" in ways or (not ways and "Socket" in networks)
    there = [rank for rank in facts.ranks if rank["infiniband"]]
    if facts.run["nodes"] > 1 and sockets and there:
        return warn(
            f"NCCL talks over sockets, {there[0]['node']} has InfiniBand ({listed(there[0]['infiniband'])})",
            "unset NCCL_IB_DISABLE and NCCL_NET; check `ulimit -l` (must be unlimited) and that the container or "
            "environment has libibverbs; NCCL_DEBUG=INFO says why it turned InfiniBand down",
        )
    return fine(f"NCCL by {listed(sorted(ways) or sorted(networks) or ['nothing: one process'])}")


@check("NCCL's warnings")
def nccl_warnings(facts: Facts) -> Finding | None:
    """What NCCL itself warns of; where the ranks got no further, that is why: its watchdog ends them without a word."""
    for rank in facts.ranks:
        warnings = [line for line in (rank.get("nccl") or {}).get("warnings", ()) if not look_up(line, "nccl")]
        if warnings:
            return (warn if facts.complete else stop)(
                f"{who(rank)}: {warnings[0]}",
                "look it up in NCCL's documentation (Troubleshooting); nccl-*.log has the rest",
            )
    return None


@check("all-reduce")
def all_reduce(facts: Facts) -> Finding | None:
    """Sums that are wrong."""
    wrong = [row for row in facts.allreduce if not row["right"]]
    if wrong:
        return stop(
            f"an all-reduce of {wrong[0]['bytes']} bytes over {wrong[0]['processes']} ranks gave wrong sums",
            "with NCCL try NCCL_P2P_DISABLE=1 once: if it is right then, tell your site (often the IOMMU or ACS)",
        )
    if not facts.allreduce:
        return None
    most = _fastest(facts, "all")
    assert most is not None
    return fine(f"{most['bus_gb_per_second']:.2g} GB/s bus bandwidth over {most['processes']} ranks")


@check("bandwidth between nodes")
def bandwidth(facts: Facts) -> Finding | None:
    """Much less between the nodes than within them."""
    across, within = _fastest(facts, "all"), _fastest(facts, "node")
    if across is None or facts.run["nodes"] == 1:
        return None
    speed = across["bus_gb_per_second"]
    remedy = (
        "choose the fast interface (`network_interface` in the site's file), or InfiniBand for NCCL; else keep the run "
        "on one node"
    )
    if within and speed < LEAST_SHARE * within["bus_gb_per_second"]:
        return warn(f"{speed:.2g} GB/s between nodes, {within['bus_gb_per_second']:.2g} GB/s within them", remedy)
    if facts.run["backend"] == "nccl" and speed < LEAST_GPU_GB_PER_SECOND:
        return warn(f"{speed:.2g} GB/s between nodes: that is Ethernet", remedy)
    return fine(f"{speed:.2g} GB/s")


def _fastest(facts: Facts, span: str) -> Mapping[str, Any] | None:
    rows = [row for row in facts.allreduce if row["span"] == span]
    return max(rows, key=lambda row: row["bus_gb_per_second"], default=None)


@check("clocks")
def clocks(facts: Facts) -> Finding | None:
    """Clocks of nodes that differ: deadlines, and the ages of files by which Snakemake decides, are wrong then."""
    with_clock = [rank for rank in facts.ranks if "clock_ahead_seconds" in rank]
    if len(facts.nodes) < 2 or not with_clock:
        return None
    worst = max(with_clock, key=lambda rank: abs(rank["clock_ahead_seconds"]))
    apart = worst["clock_ahead_seconds"]
    if abs(apart) > MOST_CLOCK_SECONDS:
        return warn(
            f"the clock of {worst['node']} is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} "
            f"{facts.ranks[0]['node']}'s",
            "tell your site (NTP); until then give `latency-wait` more than that",
        )
    return fine(f"within {abs(apart):.2f} s")
