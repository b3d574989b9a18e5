"""The shortest loop under MultiWorkerMirroredStrategy that one would write by hand."""

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402 - the strategy comes before anything that uses TensorFlow

from benchmarks.peers import run, workloads  # noqa: E402


def main():
    contest = run.contest()
    with strategy.scope():
        model = contest.model.build(keras)
        model.set_weights(contest.weights())
        optimizer = workloads.optimizer(keras, contest.model)
        optimizer.build(model.trainable_variables)
    loss_of = workloads.loss(keras, contest.model, "sum_over_batch_size")

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))  # Keras divides it by the replicas
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(x, y):
        losses = strategy.run(on_replica, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    for epoch, batches in enumerate(contest.epochs()):
        losses = 0.0
        for number, (x, y) in enumerate(batches):
            losses += float(step(tf.constant(x), tf.constant(y)))
            if not epoch + number and contest.reports:
                run.report_first_step()
        if contest.reports:
            run.report_epoch(epoch + 1, losses / len(batches))
    run.leave(reports=contest.reports)


if __name__ == "__main__":
    main()
