"""ResNet-50 on the ImageFolder tree /data, the shortest program that is correct, in the manner of torchvision's recipe:
examples/resnet50 is measured by it.

    python resnet50.py --image-size=64 --batch-size=16 --epochs=1 --workers=1

Prints an object per step. It trains alone, on a GPU if it sees one (then in bfloat16).
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models import resnet50


def main() -> None:
    settings = dict(word[2:].split("=") for word in sys.argv[1:])
    size, batch, epochs, workers = (int(settings[key]) for key in ("image-size", "batch-size", "epochs", "workers"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    augment = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    pictures = ImageFolder("/data/train", transforms.Compose([*augment, normalize]))
    keep = {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": device == "cuda"}
    loader = DataLoader(pictures, batch, shuffle=True, drop_last=True, **keep)
    model = resnet50(num_classes=len(pictures.classes)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(epochs):
        began = time.monotonic()
        for images, labels in loader:
            images = images.to(device, memory_format=torch.channels_last, non_blocking=True)
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                loss = cross_entropy(model(images), labels.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            number, now = loss.item(), time.monotonic()  # waits for a GPU
            print(json.dumps({"loss": number, "seconds": now - began}), flush=True)
            began = now


if __name__ == "__main__":
    main()
