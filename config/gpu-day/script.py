"""A script as users have them: a network on random images, on the GPU where there is one."""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=256)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 15 * 15, 10)).to(
    device
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
images, labels = torch.randn(args.batch_size, 3, 32, 32), torch.randint(10, (args.batch_size,))
for epoch in range(4):
    began = time.time()
    for _ in range(20):
        loss = nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(
        f"epoch {epoch}: loss {loss.item():.3f}, {20 * args.batch_size / (time.time() - began):.0f} img/s", flush=True
    )
