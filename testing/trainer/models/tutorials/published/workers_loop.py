"""A custom training loop on several workers under MultiWorkerMirroredStrategy, with checkpoints.

Source: TensorFlow, tutorial "Custom training loop with Keras and MultiWorkerMirroredStrategy".
"""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn import datasets


def load_data():
    """Handwritten digits, scaled to the 28 by 28 pixels of MNIST."""
    digits = datasets.load_digits()
    images = np.pad(np.kron(digits.images * 15, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    return images.astype("uint8"), digits.target


def mnist_dataset():
    x_train, y_train = load_data()
    x_train = x_train / np.float32(255)
    y_train = y_train.astype(np.int64)
    return tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(60000)


def dataset_fn(global_batch_size, input_context):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size)
    dataset = mnist_dataset().repeat()
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.batch(batch_size)


def build_cnn_model():
    regularizer = tf.keras.regularizers.L2(1e-5)
    return tf.keras.Sequential(
        [
            tf.keras.Input(shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.Dense(10, kernel_regularizer=regularizer),
        ]
    )


per_worker_batch_size = 64
num_epochs = 3
num_steps_per_epoch = 15
checkpoint_dir = "./ckpt"


def is_chief(task_type, task_id, cluster_spec):
    return (
        task_type is None
        or task_type == "chief"
        or (task_type == "worker" and task_id == 0 and "chief" not in cluster_spec.as_dict())
    )


def write_filepath(filepath, task_type, task_id, cluster_spec):
    """The path of the chief, or one of this worker's alone: all have to take part in saving."""
    folder = os.path.dirname(filepath)
    if not is_chief(task_type, task_id, cluster_spec):
        folder = os.path.join(folder, f"workertemp_{task_id}")
        tf.io.gfile.makedirs(folder)
    return os.path.join(folder, os.path.basename(filepath))


tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])
global_batch_size = per_worker_batch_size * num_workers

strategy = tf.distribute.MultiWorkerMirroredStrategy()

with strategy.scope():
    multi_worker_dataset = strategy.distribute_datasets_from_function(
        lambda input_context: dataset_fn(global_batch_size, input_context)
    )
    multi_worker_model = build_cnn_model()
    optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.001)
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = multi_worker_model(x, training=True)
            per_example_loss = tf.keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction=tf.keras.losses.Reduction.NONE
            )(y, predictions)
            loss = tf.nn.compute_average_loss(per_example_loss)
            loss += tf.nn.scale_regularization_loss(tf.add_n(multi_worker_model.losses))
        grads = tape.gradient(loss, multi_worker_model.trainable_variables)
        optimizer.apply_gradients(zip(grads, multi_worker_model.trainable_variables, strict=True))
        train_accuracy.update_state(y, predictions)
        return loss

    per_replica_losses = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="epoch")
step_in_epoch = tf.Variable(
    initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="step_in_epoch"
)

resolver = strategy.cluster_resolver
task = (resolver.task_type, resolver.task_id, resolver.cluster_spec())
checkpoint = tf.train.Checkpoint(model=multi_worker_model, epoch=epoch, step_in_epoch=step_in_epoch)
write_checkpoint_dir = write_filepath(checkpoint_dir, *task)
checkpoint_manager = tf.train.CheckpointManager(
    checkpoint, directory=write_checkpoint_dir, max_to_keep=1
)

latest_checkpoint = tf.train.latest_checkpoint(checkpoint_dir)
if latest_checkpoint:
    checkpoint.restore(latest_checkpoint)

while epoch.numpy() < num_epochs:
    iterator = iter(multi_worker_dataset)
    total_loss = 0.0
    num_batches = 0
    while step_in_epoch.numpy() < num_steps_per_epoch:
        total_loss += train_step(iterator)
        num_batches += 1
        step_in_epoch.assign_add(1)
    accuracy = float(train_accuracy.result())
    print(f"Epoch: {epoch.numpy()}, train_loss: {total_loss / num_batches:.4f}", flush=True)
    train_accuracy.reset_states()
    checkpoint_manager.save()
    if not is_chief(*task):
        tf.io.gfile.rmtree(write_checkpoint_dir)
    epoch.assign_add(1)
    step_in_epoch.assign(0)
print(f"accuracy {accuracy:.3f}", flush=True)
