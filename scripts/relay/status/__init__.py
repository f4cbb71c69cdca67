"""The status stage: what of a plan is done, running, queued or still to do, from its files and Slurm's queue."""
