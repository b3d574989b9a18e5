"""Handwritten digits with parameter servers, as TensorFlow's own guide has it: TF_CONFIG alone."""

import keras
import tensorflow as tf
from sklearn import datasets, model_selection

EPOCHS = 6
BATCH = 32  # of each worker's step

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        start=True,
    )
    server.join()  # never returns: the job ends the servers when the chief is done

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

digits = datasets.load_digits()
train_x, test_x, train_y, test_y = model_selection.train_test_split(
    (digits.images / 16.0).astype("float32"),
    digits.target.astype("int32"),
    test_size=360,
    random_state=7,
)

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
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    steps = tf.Variable(0, dtype=optimizer.iterations.dtype)


def worker_data():
    data = tf.data.Dataset.from_tensor_slices((train_x, train_y))
    return data.shuffle(2000).repeat().batch(BATCH)


@tf.function
def train_step(iterator):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        # Keras reads its counter, adds 1 and writes: of workers that do so at once, one counts.
        optimizer.iterations.assign(steps.assign_add(1))
        return loss

    return strategy.run(step, args=next(iterator))


batches = iter(coordinator.create_per_worker_dataset(worker_data))
for epoch in range(EPOCHS):
    losses = [
        coordinator.schedule(train_step, args=(batches,)) for _ in range(len(train_x) // BATCH)
    ]
    coordinator.join()
    optimizer.iterations.assign(steps)
    mean = sum(float(loss) for loss in coordinator.fetch(losses)) / len(losses)
    print(f"epoch {epoch + 1} of {EPOCHS}: loss {mean:.4f}", flush=True)

guess = tf.argmax(model(test_x), axis=-1, output_type=tf.int32)
correct = int(tf.reduce_sum(tf.cast(guess == test_y, tf.int32)))
print(f"{int(optimizer.iterations)} steps", flush=True)
print(f"accuracy {correct / len(test_x):.3f} on {len(test_x)} images", flush=True)
