"""The shortest loop under a strategy: `strategy_loop.py STRATEGY EPOCHS BATCH`.

EPOCHS 0 makes one step. The strategy is Mirrored (over two devices of the CPU) or
MultiWorkerMirrored (as TF_CONFIG says).
"""

import os
import sys

import tensorflow as tf

from benchmarks.scripts import events


def main(kind, epochs, batch):
    strategy = _strategy(kind)
    import keras

    from benchmarks.models import cnn

    x, y = cnn.training_data()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = cnn.build_model()
        optimizer = keras.optimizers.Adam(cnn.LEARNING_RATE)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    batches = strategy.distribute_datasets_from_function(lambda at: _parts(x, y, batch, at))

    def on_replica(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True)) / batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(images, labels):
        losses = strategy.run(on_replica, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    for epoch in range(max(epochs, 1)):
        losses = []
        for images, labels in batches:
            losses.append(float(step(images, labels)))
            if not epochs:
                break
        events.write("epoch", epoch=epoch + 1, loss=sum(losses) / len(losses))


def _parts(x, y, batch, at):
    """What the replicas of a process take of each batch: all rows at once, as the trainer does."""
    replicas = at.num_replicas_in_sync
    local = replicas // at.num_input_pipelines
    rows = tf.random.experimental.index_shuffle(tf.range(len(x)), seed=[0, 0], max_index=len(x) - 1)
    images, labels = tf.constant(x), tf.constant(y)

    def part(number):
        step, replica = number // local, at.input_pipeline_id * local + number % local
        indices = rows[step * batch : (step + 1) * batch]
        size = -(-tf.shape(indices, out_type=tf.int64)[0] // replicas)
        indices = indices[replica * size : (replica + 1) * size]
        return tf.gather(images, indices), tf.gather(labels, indices)

    numbers = tf.data.Dataset.range(-(-len(x) // batch) * local)
    return numbers.map(part, num_parallel_calls=2).prefetch(2 * local)


def _strategy(kind):
    if kind == "MultiWorkerMirrored":
        return tf.distribute.MultiWorkerMirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)
