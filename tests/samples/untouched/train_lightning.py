"""A training for Lightning, of which ctrain is unknown: srun ... python train_lightning.py DATA CHECKPOINTS NODES"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from shards import FEATURES, epochs
from torch.utils.data import DataLoader, IterableDataset


class Shard(IterableDataset):
    def __init__(self, directory: str, trainer: lightning.Trainer) -> None:
        self.directory, self.trainer = directory, trainer

    def __iter__(self):
        for epoch in epochs(self.directory, self.trainer.global_rank):
            yield from epoch


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, 1)

    def training_step(self, batch, _index):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        time.sleep(0.2)  # as long as a larger model takes
        if self.global_rank == 0:
            print(f"step {self.global_step + 1} loss {loss.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


data, checkpoints, nodes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
saving = ModelCheckpoint(checkpoints, "{step}", monitor="step", mode="max", save_top_k=2, every_n_train_steps=25)
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, num_nodes=nodes, strategy="ddp", callbacks=[saving], max_steps=100000, logger=False,
    enable_progress_bar=False,
)  # fmt: skip  # rows, as they are read
newest = max(checkpoints.glob("*.ckpt"), key=lambda path: path.stat().st_mtime, default=None)
trainer.fit(Model(), DataLoader(Shard(data, trainer), batch_size=None), ckpt_path=newest)
