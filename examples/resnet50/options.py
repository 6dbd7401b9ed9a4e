"""The command line of train.py."""

from __future__ import annotations

import argparse
import os


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train ResNet-50 on an ImageFolder tree with Horovod.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    data = parser.add_argument_group("data")
    data.add_argument("--data", default="/data", metavar="DIR", help="folder that holds train/ and val/")
    data.add_argument("--synthetic", action="store_true", help="random images, to measure speed")
    data.add_argument("--image-size", type=int, metavar="N", help="default: 224, less for small images")
    data.add_argument(
        "--augment",
        choices=["auto", "none", "full"],
        default="auto",
        help="full: random crops and flips; auto: full for photos of 224 pixels and more",
    )
    data.add_argument("--workers", type=int, metavar="N", help="loader processes a rank; by default as the CPUs allow")

    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=int, default=90)
    training.add_argument("--batch-size", type=int, default=32, help="images a rank and step")
    training.add_argument("--base-lr", type=float, default=0.0125, help="for 32 images a step; scaled")
    training.add_argument("--warmup-epochs", type=float, default=5, help="at most a quarter of the run")
    training.add_argument("--momentum", type=float, default=0.9)
    training.add_argument("--weight-decay", type=float, default=5e-5)
    training.add_argument("--seed", type=int, default=42)
    training.add_argument("--amp", choices=["auto", "off"], default="auto", help="bf16 or fp16 on a GPU")
    training.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit numbers")

    record = parser.add_argument_group("record")
    record.add_argument(
        "--run-dir",
        default=os.environ.get("CTRAIN_RUN_DIR", "."),
        metavar="DIR",
        help="takes metrics.jsonl and checkpoint/",
    )
    record.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS", help="0: every epoch")
    record.add_argument(
        "--resume",
        default=os.environ.get("CTRAIN_RESUME") or None,
        metavar="PATH",
        help="a checkpoint, or a run directory: its newest one",
    )
    return parser.parse_args()
