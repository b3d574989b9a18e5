"""Handwritten digits by a script that called model.fit and now calls tfparallel_trainer.fit."""

import pathlib
import sys

import keras
from sklearn import datasets, model_selection

import tfparallel_trainer

tfparallel_trainer.start()  # finds the other processes, before TensorFlow does anything

output = pathlib.Path(sys.argv[1])
digits = datasets.load_digits()
train_x, test_x, train_y, test_y = model_selection.train_test_split(
    (digits.images / 16.0).astype("float32"),
    digits.target.astype("int32"),
    test_size=360,
    random_state=7,
)

model = keras.Sequential(
    [
        keras.Input((8, 8)),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(3e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

history = tfparallel_trainer.fit(
    model,
    train_x,
    train_y,
    epochs=30,
    batch_size=64,
    validation_data=(test_x, test_y),
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(patience=2),
        keras.callbacks.EarlyStopping(patience=4, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(output / "best.keras", save_best_only=True),
    ],
    output_dir=output,
)

# Every process has the trained model and the history.
_, accuracy = model.evaluate(test_x, test_y, verbose=0)
print(f"accuracy {accuracy:.3f} after {len(history.epoch)} epochs", flush=True)
