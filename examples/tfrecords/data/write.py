"""Writes handwritten digits as TFRecord files into a folder: four to train on, one to evaluate."""

import pathlib
import sys

import tensorflow as tf
from sklearn import datasets, model_selection


def main(folder):
    digits = datasets.load_digits()
    images = digits.images[..., None].astype("uint8")
    train_x, test_x, train_y, test_y = model_selection.train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(4):
        write(folder / f"train-{part}.tfrecord", train_x[part::4], train_y[part::4])
    write(folder / "test-0.tfrecord", test_x, test_y)


def write(file, images, labels):
    with tf.io.TFRecordWriter(str(file)) as writer:
        for image, label in zip(images, labels, strict=True):
            png = tf.io.encode_png(image).numpy()
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    print(f"{file.name}: {len(labels)} records", flush=True)


main(pathlib.Path(sys.argv[1]))
