"""The images of an ImageFolder tree (train/CLASS/*, val/CLASS/*) as batches of TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from example import InputError

PHOTO_SIZE, LEAST_SIZE = 224, 32  # Keras's ResNet-50 takes no smaller ones
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")  # those of tf.io.decode_image
# Means and standard deviations of ImageNet's channels
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Images(NamedTuple):
    """`files` are bytes: text would be four times as long, and it is sent to all ranks."""

    files: np.ndarray
    labels: np.ndarray


class Transform(NamedTuple):
    """How a file becomes a picture of `size`; `photo`: cropped and mirrored at random to train on."""

    size: int
    photo: bool


def load(data: Path) -> tuple[Images, Images, list[str]]:
    """The training set, the validation set and the names of the classes. Raises InputError if `data` has none."""
    classes = {}
    for part in ("train", "val"):
        if not (data / part).is_dir():
            raise InputError(f"{data / part} not found; pass --data DIR, a directory with train/ and val/")
        classes[part] = sorted(path.name for path in (data / part).iterdir() if path.is_dir())
    # A class that only one part has would shift the labels of all that follow it.
    for name in sorted({*classes["train"]} ^ {*classes["val"]}):
        raise InputError(f"{data}: class {name} is in only one of train/ and val/; both must have the same classes")
    train, val = (_list(data / part, classes["train"]) for part in ("train", "val"))
    return train, val, classes["train"]


def _list(directory: Path, classes: list[str]) -> Images:
    files = [
        (str(path).encode(), label)
        for label, name in enumerate(classes)
        for path in sorted((directory / name).iterdir())
        if path.suffix.lower() in SUFFIXES
    ]
    if not files:
        raise InputError(f"{directory} has no pictures; each class wants its own directory with some")
    return Images(*map(np.array, zip(*files)))


def make_transform(images: Images, size: int | None) -> Transform:
    """By default the first image's size, at most 224. Small images are rarely photos: a mirrored digit is another."""
    size = size or max(LEAST_SIZE, min(PHOTO_SIZE, *_decode(images.files[0]).shape[:2]))
    if size < LEAST_SIZE:
        raise InputError(f"--image-size must be at least {LEAST_SIZE}, not {size}")
    return Transform(size, size >= PHOTO_SIZE)


def batches(
    images: Images, chosen: np.ndarray, batch_size: int, transform: Transform, training: bool
) -> tf.data.Dataset:
    """The chosen images, read ahead by as many threads as the cores allow."""
    dataset = tf.data.Dataset.from_tensor_slices((images.files[chosen], images.labels[chosen]))

    def read(file: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return _read(file, transform, training), label

    return dataset.map(read, num_parallel_calls=tf.data.AUTOTUNE).batch(batch_size).prefetch(tf.data.AUTOTUNE)


def _decode(file: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_image(tf.io.read_file(file), channels=3, expand_animations=False)
    return tf.ensure_shape(image, (None, None, 3))


def _read(file: tf.Tensor, transform: Transform, training: bool) -> tf.Tensor:
    image = _decode(file)
    if transform.photo and training:
        everything = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
        start, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image), everything, aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0)
        )
        image = tf.image.random_flip_left_right(tf.slice(image, start, extent))
    else:
        side = tf.reduce_min(tf.shape(image)[:2])
        image = tf.image.resize_with_crop_or_pad(image, side, side)
        if transform.photo:
            image = tf.image.central_crop(image, 7 / 8)  # 224 of 256
    image = tf.image.resize(image, (transform.size, transform.size), antialias=True)
    return (image / 255 - MEAN) / DEVIATION
