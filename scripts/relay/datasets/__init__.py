"""The dataset stage: brings a dataset into one verified form, once, on the login node.

A prepared dataset is a folder of four arrays and `manifest.json`. Jobs only read: `verify` and `load_split`
need numpy alone. Making one (`relay.datasets.prepare`) also needs requests, tenacity, tqdm and, for `digits`,
scikit-learn. None of it imports torch or torchvision: the login node's environment need not hold them, and
torchvision's datasets cannot even be imported beside a torch of another build. The two formats take a few
lines of numpy (`mnist.py`, `cifar10.py`).
"""

from relay.datasets.manifest import FileRecord, Manifest, load_split, verify

__all__ = ["FileRecord", "Manifest", "load_split", "verify"]
