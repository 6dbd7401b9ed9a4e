"""Classify handwritten digits with Keras and Horovod: train.py in TensorFlow, step by step.

ctrain run --nodes 2 --image tensorflow-cpu --data DIR -- python /opt/ctrain/examples/digits/train_keras.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no notes of each rank about its CPU
import horovod.tensorflow as hvd
import numpy as np
import pictures
import tensorflow as tf
from example import EXIT_SAVED, Metrics, World, finish, run_dir, stopping
from keras_checkpoint import restore
from tensorflow.keras import layers


def make_model() -> tf.keras.Model:
    """The network of digits.py."""
    convolution = {"kernel_size": 3, "strides": 2, "padding": "same", "activation": "relu"}
    first = layers.Conv2D(16, **convolution, input_shape=(pictures.SIZE, pictures.SIZE, 1))
    return tf.keras.Sequential([first, layers.Conv2D(32, **convolution), layers.Flatten(), layers.Dense(10)])


def load(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels = pictures.load(directory)
    return images.transpose(0, 2, 3, 1), labels  # the channels last


def main() -> int:
    parser = pictures.make_parser("Classify handwritten digits with Keras and Horovod.")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank")
    options = parser.parse_args()

    # Step 1: start. From here on each process knows its rank, and how many ranks there are.
    hvd.init()
    # Step 2: pin. Each rank of a node takes the GPU of its local rank; else TensorFlow would take all of them.
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    world = World(hvd.rank(), hvd.size(), hvd.local_rank())

    (images, labels), (val_images, val_labels) = load(options.data / "train"), load(options.data / "val")
    per_rank = len(labels) // world.size
    steps_per_epoch = -(-per_rank // options.batch_size)
    tf.keras.utils.set_random_seed(0)
    model = make_model()

    # Step 3: scale and wrap. A step sees `size` times as many pictures; the optimizer averages the ranks' gradients.
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(options.lr * world.size, momentum=0.9))
    model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    # Step 4: broadcast. All ranks start as rank 0 does: anew, or where the run to resume was. An empty step gives a new
    # optimizer its state.
    first_epoch = tf.Variable(0)
    optimizer.apply_gradients([(tf.zeros_like(weight), weight) for weight in model.trainable_variables])
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=first_epoch)
    if world.rank == 0:
        restore(checkpoint)
    hvd.broadcast_variables([first_epoch, *model.variables, *optimizer.variables()], root_rank=0)

    metrics = Metrics(world)
    saved = tf.train.CheckpointManager(checkpoint, str(run_dir() / "checkpoint"), max_to_keep=2, checkpoint_name="step")
    stopping()  # from here on a signal only asks for the end, after an epoch
    for epoch in range(int(first_epoch), options.epochs):
        # Each epoch deals the pictures anew, as many to each rank: its steps wait for those of the others.
        share = np.random.default_rng(epoch).permutation(len(labels))[world.rank :: world.size][:per_rank]
        optimizer.learning_rate = options.lr * world.size * (1 - epoch / options.epochs)
        history = model.fit(images[share], labels[share], options.batch_size, shuffle=False, verbose=0).history
        answers = model.predict(val_images[world.rank :: world.size], verbose=0).argmax(axis=1)
        correct = np.sum(answers == val_labels[world.rank :: world.size])
        loss = float(hvd.allreduce(tf.constant(history["loss"][0]), op=hvd.Average))
        accuracy = int(hvd.allreduce(tf.constant(correct), op=hvd.Sum)) / len(val_labels)
        stops = float(hvd.allreduce(tf.constant(float(stopping())), op=hvd.Sum))

        # Step 5: rank 0 alone reports and writes checkpoints; the others hold the same weights.
        if world.rank == 0:
            done = {"epoch": epoch + 1, "step": (epoch + 1) * steps_per_epoch}
            metrics.write(**done, steps=options.epochs * steps_per_epoch, loss=loss, accuracy=accuracy)
            world.say(f"epoch {epoch + 1}/{options.epochs}  loss {loss:.3f}  accuracy {accuracy:.1%}")
            first_epoch.assign(epoch + 1)
            saved.save(checkpoint_number=done["step"])
        if stops and epoch + 1 < options.epochs:
            return EXIT_SAVED
    return 0


if __name__ == "__main__":
    finish(main)
