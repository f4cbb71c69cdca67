"""The checks of the library by which processes communicate."""

from __future__ import annotations

from relay.preflight.findings import Facts, Outcome, check, fine, listed, stop, who


@check("backend", prevents_joining=True)
def backend(facts: Facts) -> Outcome | None:
    """A torch that was built without the backend: `Distributed package doesn't have MPI built in`."""
    wanted = facts.run["backend"]
    known = [rank for rank in facts.ranks if (rank.get("torch") or {}).get("backends")]
    if facts.run["world_size"] == 1 or not known:
        return None
    for rank in known:
        if wanted not in (has := rank["torch"]["backends"]):
            return stop(
                f"torch is built without {wanted} for {who(rank)}: it has {listed(has)}",
                "take another `backend`, or a build of torch that has it: see `environment` in the site's file",
            )
    return fine(f"torch is built with {wanted}")
