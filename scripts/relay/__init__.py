"""Torch Relay: measures which way of training to ask Slurm for."""

__version__ = "0.1.0"
