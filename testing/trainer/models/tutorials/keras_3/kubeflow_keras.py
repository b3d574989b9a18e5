"""Keras' fit on several workers, as a TFJob of Kubeflow trains.

Source: Kubeflow, examples/tensorflow/distribution_strategy/keras-API of the training-operator.
"""

import argparse
import json
import os

import numpy as np
import tensorflow as tf
from sklearn import datasets
from tensorflow.keras import layers, models

import tfparallel_trainer


def load_data():
    """Handwritten digits, scaled to the 28 by 28 pixels of MNIST."""
    digits = datasets.load_digits()
    images = np.pad(np.kron(digits.images * 15, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    return images[..., None].astype("uint8"), digits.target


def make_datasets_unbatched():
    def scale(image, label):
        image = tf.cast(image, tf.float32)
        image /= 255
        return image, label

    dataset = tf.data.Dataset.from_tensor_slices(load_data())
    return dataset.map(scale).cache().shuffle(10000, seed=7)


def build_and_compile_cnn_model():
    model = models.Sequential()
    model.add(layers.Conv2D(32, (3, 3), activation="relu", input_shape=(28, 28, 1)))
    model.add(layers.MaxPooling2D((2, 2)))
    model.add(layers.Conv2D(64, (3, 3), activation="relu"))
    model.add(layers.MaxPooling2D((2, 2)))
    model.add(layers.Conv2D(64, (3, 3), activation="relu"))
    model.add(layers.Flatten())
    model.add(layers.Dense(64, activation="relu"))
    model.add(layers.Dense(10, activation="softmax"))
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def decay(epoch):
    return 1e-3 if epoch < 3 else 1e-4


def main(args):
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CollectiveCommunication.AUTO
        )
    )
    batch_size = 64 * strategy.num_replicas_in_sync

    with strategy.scope():
        ds_train = make_datasets_unbatched().batch(batch_size).repeat()
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        ds_train = ds_train.with_options(options)
        multi_worker_model = build_and_compile_cnn_model()

    checkpoint_prefix = os.path.join(args.checkpoint_dir, "ckpt_{epoch}.weights.h5")

    class PrintLR(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rate = multi_worker_model.optimizer.learning_rate.numpy()
            print(f"Learning rate for epoch {epoch + 1} is {rate}", flush=True)

    callbacks = [
        tf.keras.callbacks.TensorBoard(log_dir="./logs"),
        tf.keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
        tf.keras.callbacks.LearningRateScheduler(decay),
        PrintLR(),
    ]
    history = tfparallel_trainer.fit(
        multi_worker_model,
        ds_train,
        epochs=3,
        steps_per_epoch=20,
        callbacks=callbacks,
    )

    if TASK_INDEX == 0:
        model_path = args.saved_model_dir
    else:
        # Each worker takes part in saving, and needs a path of its own.
        model_path = args.saved_model_dir + "_worker_tmp_" + str(TASK_INDEX)
    multi_worker_model.save(model_path + ".keras")
    print(f"accuracy {history.history['accuracy'][-1]:.3f}", flush=True)


if __name__ == "__main__":
    os.environ["NCCL_DEBUG"] = "INFO"
    tf_config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    TASK_INDEX = tf_config["task"]["index"]
    parser = argparse.ArgumentParser()
    parser.add_argument("--saved_model_dir", type=str, required=True)
    parser.add_argument("--checkpoint_dir", type=str, required=True)
    main(parser.parse_args())
