"""Handwritten digits on several workers, in a script that knows nothing but TF_CONFIG."""

import keras
import tensorflow as tf
from sklearn import datasets, model_selection

EPOCHS = 8
GLOBAL_BATCH = 64

# Before any other call of TensorFlow: this joins the cluster that TF_CONFIG describes.
strategy = tf.distribute.MultiWorkerMirroredStrategy()

keras.utils.set_random_seed(7)  # the same first weights in every process
digits = datasets.load_digits()
train_x, test_x, train_y, test_y = model_selection.train_test_split(
    (digits.images / 16.0).astype("float32"),
    digits.target.astype("int32"),
    test_size=360,
    random_state=7,
)


def share(x, y, batch):
    """This worker's share of the examples."""

    def pipeline(context):
        data = tf.data.Dataset.from_tensor_slices((x, y))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return data.shuffle(2000, seed=7).batch(batch // context.num_replicas_in_sync)

    return strategy.distribute_datasets_from_function(pipeline)


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
    optimizer.build(model.trainable_variables)  # Keras makes its slots here, outside tf.function
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


@tf.function
def count_correct(batch):
    def step(x, y):
        guess = tf.argmax(model(x, training=False), axis=-1, output_type=y.dtype)
        return tf.reduce_sum(tf.cast(guess == y, tf.int32))

    return strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)


for epoch in range(EPOCHS):
    losses = [float(train_step(batch)) for batch in share(train_x, train_y, GLOBAL_BATCH)]
    print(f"epoch {epoch + 1} of {EPOCHS}: loss {sum(losses) / len(losses):.4f}", flush=True)

# All workers take part in this sum, so none leaves while another still needs it.
correct = sum(int(count_correct(batch)) for batch in share(test_x, test_y, len(test_x)))
print(f"accuracy {correct / len(test_x):.3f} on {len(test_x)} images", flush=True)
