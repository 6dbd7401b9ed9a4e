"""Train Keras's ResNet-50 on an ImageFolder tree with Horovod: examples/resnet50 in TensorFlow.

The five things that Horovod asks of a training program are marked "Horovod 1" to "Horovod 5".
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no notes of each rank about its CPU
import data
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from example import EXIT_SAVED, InputError, Metrics, World, begin, finish, run_dir, stopping
from keras_checkpoint import restore
from settings import OptionParser
from step_clock import StepClock


def parse_options() -> argparse.Namespace:
    parser = OptionParser(
        description="Train Keras's ResNet-50 on an ImageFolder tree with Horovod.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default="/data", metavar="DIR", help="directory with train/ and val/")
    add("--image-size", type=int, metavar="N", help="default: 224, less for small images")
    add("--epochs", type=int, default=90)
    add("--batch-size", type=int, default=32, metavar="N", help="images per rank and step")
    add("--base-lr", type=float, default=0.0125, help="learning rate for 32 images per step; scaled")
    add("--warmup-epochs", type=float, default=5, help="at most a quarter of the run")
    add("--weight-decay", type=float, default=5e-5)
    add("--seed", type=int, default=42)
    add("--checkpoint-every", type=int, default=0, metavar="STEPS", help="0: every epoch")
    options = parser.parse_args()
    for name, value in vars(options).items():
        least = int(name in ("epochs", "batch_size"))
        if isinstance(value, (int, float)) and value < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, not {value}")
    return options


def make_model(size: int, classes: int, steps_per_epoch: int) -> tf.keras.Model:
    model = tf.keras.applications.ResNet50(
        weights=None, input_shape=(size, size, 3), classes=classes, classifier_activation=None
    )
    for layer in model.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            # Running statistics that reach back over several short epochs would describe a network of long ago.
            layer.momentum = 1 - min(0.5, max(0.1, 5 / steps_per_epoch))
            if layer.name.endswith("_3_bn"):  # blocks that start as the identity let large batches train stably
                layer.gamma.assign(tf.zeros_like(layer.gamma))
    return model


class Trainer:
    """The model and its optimizer on one rank, and how far they are."""

    def __init__(self, options: argparse.Namespace, world: World) -> None:
        self.options, self.world = options, world
        # Rank 0 lists the images for all: thousands of ranks would overload the file system.
        listed = hvd.broadcast_object(data.load(options.data) if world.rank == 0 else None, root_rank=0)
        self.images, self.val_images, classes = listed
        self.transform = data.make_transform(self.images, options.image_size)
        self.steps_per_epoch = len(self.images.labels) // (options.batch_size * world.size)
        if not self.steps_per_epoch or len(self.val_images.labels) < world.size:
            raise InputError(
                f"{options.data} has {len(self.images.labels)} images to train on and {len(self.val_images.labels)} to "
                f"validate: not enough for a step of {world.size} x {options.batch_size}; pass a smaller --batch-size"
            )
        self.total_steps = options.epochs * self.steps_per_epoch
        self.step = 0
        tf.keras.utils.set_random_seed(options.seed)
        self.model = make_model(self.transform.size, len(classes), self.steps_per_epoch)
        self.loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # Horovod 3: the learning rate grows with the ranks (and `train_step` averages their gradients).
        self.peak_lr = options.base_lr * options.batch_size / 32 * world.size
        self.optimizer = tf.keras.optimizers.SGD(self.peak_lr, momentum=0.9)
        # In epochs: on another number of ranks an epoch has another number of steps.
        self.epochs_done = tf.Variable(0.0, dtype=tf.float64)
        self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer, epochs=self.epochs_done)
        directory = str(run_dir() / "checkpoint")
        self.saved = tf.train.CheckpointManager(self.checkpoint, directory, max_to_keep=2, checkpoint_name="step")

    def start(self) -> None:
        """Makes all ranks equal: to the checkpoint to resume from, or to rank 0's random start."""
        # An empty step gives a new optimizer its state.
        self.optimizer.apply_gradients([(tf.zeros_like(weight), weight) for weight in self.model.trainable_variables])
        resumed = restore(self.checkpoint) if self.world.rank == 0 else False
        # Horovod 4: broadcast.
        variables = [self.epochs_done, *self.model.variables, *self.optimizer.variables()]
        hvd.broadcast_variables(variables, root_rank=0)
        self.step = round(float(self.epochs_done) * self.steps_per_epoch)
        if resumed:
            self.world.say(f"resumed: {self.step} of {self.total_steps} steps are done")

    def save(self) -> None:
        """All ranks call it. Horovod 5: rank 0 alone writes; the others hold the same."""
        self.average_statistics()
        if self.world.rank == 0:
            self.epochs_done.assign(self.step / self.steps_per_epoch)
            self.saved.save(checkpoint_number=self.step)

    def learning_rate(self) -> float:
        """A linear warm-up, then half a cosine down to zero."""
        warmup = round(min(self.options.warmup_epochs, self.options.epochs / 4) * self.steps_per_epoch)
        if self.step < warmup:
            return self.peak_lr * (self.step + 1) / warmup
        return self.peak_lr * (1 + math.cos(math.pi * (self.step - warmup) / (self.total_steps - warmup))) / 2

    def train_epoch(self, epoch: int) -> Iterator[tuple[float, dict[str, float], bool]]:
        """Trains what is left of the epoch; yields of each step the mean loss, its speed, and whether a rank was asked
        to stop."""
        size, rank, batch, clock = self.world.size, self.world.rank, self.options.batch_size, StepClock()
        # Each epoch deals the images anew, as many to each rank: its steps wait for those of the others.
        share = np.random.default_rng([self.options.seed, epoch]).permutation(len(self.images.labels))[rank::size]
        left = share[self.step % self.steps_per_epoch * batch : self.steps_per_epoch * batch]
        for images, labels in data.batches(self.images, left, batch, self.transform, training=True):
            clock.start_computing()
            self.optimizer.learning_rate = self.learning_rate()
            loss_sum, stops = self.train_step(images, labels, tf.constant(float(stopping()))).numpy().tolist()
            self.step += 1
            speed, times = clock.end_step(batch * size)
            yield loss_sum / size, {"images_per_second": speed, **times}, stops > 0

    @tf.function
    def train_step(self, images: tf.Tensor, labels: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        """Sums over all ranks: the loss, and the requests to stop."""
        weights = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.loss(labels, self.model(images, training=True))
            # Biases and the scales of batch normalization (one dimension) are not decayed.
            decay = tf.add_n([tf.nn.l2_loss(weight) for weight in weights if weight.shape.rank > 1])
            total = loss + self.options.weight_decay * decay
        tape = hvd.DistributedGradientTape(tape)
        self.optimizer.apply_gradients(zip(tape.gradient(total, weights), weights))
        return hvd.allreduce(tf.stack([loss, stop]), op=hvd.Sum)

    def average_statistics(self) -> None:
        """Each rank has seen other images; the mean of their batch statistics is that of the model as a whole."""
        statistics = self.model.non_trainable_variables
        for mine, mean in zip(statistics, hvd.grouped_allreduce(statistics, op=hvd.Average)):
            mine.assign(mean)

    def validate(self) -> tuple[float, float, int]:
        """Loss, accuracy and number of all images of all ranks: each image is in the share of one."""
        self.average_statistics()
        share = np.arange(self.world.rank, len(self.val_images.labels), self.world.size)
        labels = self.val_images.labels[share]
        shown = data.batches(self.val_images, share, self.options.batch_size, self.transform, training=False)
        outputs = self.model.predict(shown, verbose=0)
        correct = np.sum(outputs.argmax(axis=1) == labels)
        sums = tf.constant([float(self.loss(labels, outputs)) * len(labels), correct, len(labels)], tf.float64)
        loss_sum, correct, count = hvd.allreduce(sums, op=hvd.Sum).numpy().tolist()
        return loss_sum / count, correct / count, int(count)


def train(trainer: Trainer, metrics: Metrics) -> bool:
    """Whether a signal ended the training."""
    stopping()  # from here on a signal only asks for the end; earlier, there is nothing to save
    options, world = trainer.options, trainer.world
    images_per_step = options.batch_size * world.size
    for epoch in range(trainer.step // trainer.steps_per_epoch, options.epochs):
        place = {"epoch": epoch + 1, "epochs": options.epochs}
        began, losses = time.monotonic(), []
        for loss, speeds, stop in trainer.train_epoch(epoch):
            losses.append(loss)
            facts = {"step": trainer.step, "steps": trainer.total_steps, "lr": float(trainer.optimizer.learning_rate)}
            metrics.write(**place, **facts, **speeds, loss=loss)
            if stop:
                trainer.save()
                world.say(f"asked to end after step {trainer.step} of {trainer.total_steps}; a checkpoint was saved")
                return True
            if options.checkpoint_every and trainer.step % options.checkpoint_every == 0:
                trainer.save()
        speed = len(losses) * images_per_step / (time.monotonic() - began)
        val_loss, val_accuracy, count = trainer.validate()
        metrics.write(**place, step=trainer.step, val_loss=val_loss, val_accuracy=val_accuracy, val_images=count)
        if not options.checkpoint_every or trainer.step == trainer.total_steps:
            trainer.save()
        world.say(
            f"epoch {epoch + 1}/{options.epochs}  loss {np.mean(losses):.2f}  "
            f"val accuracy {100 * val_accuracy:.1f} %  {speed:,.0f} images/s"
        )
    return False


def main() -> int:
    options = parse_options()
    # Horovod 1: start (hvd.init). Horovod 2: pin: each rank of a node takes the GPU of its local rank (in `begin`).
    world = begin("tensorflow")
    trainer = Trainer(options, world)
    trainer.start()
    return EXIT_SAVED if train(trainer, Metrics(world)) else 0


if __name__ == "__main__":
    finish(main)
