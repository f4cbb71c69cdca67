"""The dataset stage: brings a dataset into one verified form, once, on the login node.

A prepared dataset is a folder of four arrays and `manifest.json`. Jobs only read: `manifest.verify` and
`manifest.load_split` need numpy alone, `verified.check` not even that. Making one (`relay.datasets.prepare`) also needs
requests, tenacity, tqdm and, for `digits`, scikit-learn. Both do without torch and torchvision: the login node's
environment need not hold them, and torchvision's datasets cannot even be imported beside a torch of another build. The
two public formats take a few lines of numpy (`mnist.py`, `cifar10.py`). Torch is imported only where a training reads
(`vision.py`, and in functions of a kind's reader).
"""
