"""A cluster that is none of the ready ones: nodes of four GPUs, and every stack in the driver's own environment."""

from __future__ import annotations

from pathlib import Path

import yaml

from relay.spec.site import Site, load_site

SITE = {
    "name": "somewhere",
    "description": "a cluster",
    "verified": "never",
    "partitions": [
        {"name": "gpus", "device": "cuda", "gpus_per_node": 4, "cpus_per_node": 48, "max_nodes": 4, "max_minutes": 600},
        {"name": "cpus", "device": "cpu", "cpus_per_node": 48, "max_nodes": 4, "max_minutes": 600},
    ],
    "environment": {"mode": "current"},
}


def somewhere(folder: Path) -> Site:
    """The site, read from a file in a folder."""
    file = folder / "somewhere.yaml"
    file.write_text(yaml.safe_dump(SITE))
    return load_site(str(file), folder)
