"""The checkpoint to resume a Keras program from, in TensorFlow's own format."""

from __future__ import annotations

import tensorflow as tf
from example import InputError, is_restarted, resume_dir


def restore(checkpoint: tf.train.Checkpoint) -> bool:
    """Takes the newest checkpoint of the run that `ctrain run --resume` names; False for a new run.

    Raises InputError if that run has none, or one of another model.
    """
    directory = resume_dir()
    if directory is None:
        return False
    path = tf.train.latest_checkpoint(str(directory))
    if path is None and is_restarted():
        return False
    if path is None:
        raise InputError(f"{directory} has no checkpoint of TensorFlow to resume from")
    try:
        checkpoint.restore(path).assert_existing_objects_matched()
    except (AssertionError, ValueError) as error:
        raise InputError(f"{path} is of another model: {str(error).splitlines()[0]}") from error
    return True
