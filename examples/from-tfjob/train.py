"""Handwritten digits on two workers, by a script that ran as a TFJob: TF_CONFIG alone."""

import keras
import tensorflow as tf
from sklearn import datasets

EPOCHS = 5
GLOBAL_BATCH = 64

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(7)
digits = datasets.load_digits()
images, labels = (digits.images / 16).astype("float32"), digits.target.astype("int32")


def pipeline(context):
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    return data.shuffle(2000, seed=7).batch(GLOBAL_BATCH // context.num_replicas_in_sync)


with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(3e-3)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def train_step(batch):
    def step(x, y):
        with tf.GradientTape() as tape:
            losses = loss_of(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)


for epoch in range(EPOCHS):
    batches = strategy.distribute_datasets_from_function(pipeline)
    losses = [float(train_step(batch)) for batch in batches]
    print(f"epoch {epoch + 1} of {EPOCHS}: loss {sum(losses) / len(losses):.4f}", flush=True)
