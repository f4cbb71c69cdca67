"""Prepared data: made once on the login node, verified, and read by jobs.

Prepared data are a folder of files and `manifest.json`, which has the SHA-256 of each. What fills the folder is a
task's own method `prepare`. Here is also what the built-in tasks' methods use: downloads of known files, the formats of
MNIST and CIFAR-10, and generated data. None of it needs torch.
"""
