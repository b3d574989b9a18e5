"""The fit of Keras 2 under MultiWorkerMirroredStrategy, which Keras 3 does not support."""

import tensorflow as tf
import tf_keras

from benchmarks.peers import run, workloads


def main():
    contest = run.contest()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = contest.model.build(tf_keras)
        model.set_weights(contest.weights())
        model.compile(
            workloads.optimizer(tf_keras, contest.model),
            workloads.loss(tf_keras, contest.model, "auto"),
        )
    x, y = contest.examples()
    tensors = [tf.constant(part) for part in (x, y)]
    size = contest.model.batch // contest.processes

    def share(step):
        first = step * contest.model.batch + contest.rank * size
        return tuple(part[first : first + size] for part in tensors)

    steps = contest.model.steps
    # Otherwise, TensorFlow divides the batches of this process again.
    data = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.range(run.EPOCHS * steps).map(share).prefetch(2)
    )
    callbacks = run.fit_callbacks(contest, tf_keras.callbacks.Callback)
    model.fit(data, epochs=run.EPOCHS, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    run.leave(reports=contest.reports)


if __name__ == "__main__":
    main()
