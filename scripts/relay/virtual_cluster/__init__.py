"""A real Slurm cluster of virtual nodes on one machine: to try `profiles/slurm` on, and for the tests."""
