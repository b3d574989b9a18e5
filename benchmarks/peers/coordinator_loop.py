"""A hand-written ClusterCoordinator loop with parameter servers; the chief reports.

The roles follow from TF_CONFIG. Each worker reads batches by itself, as TensorFlow's guide does it.
"""

import tensorflow as tf
import tf_keras

from benchmarks.peers import run, workloads

IN_FLIGHT = 8
"""Steps that the chief schedules before it waits, for each worker."""


def main():
    contest = run.contest()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        )
        server.join()
    _coordinate(contest, resolver)


def _coordinate(contest, resolver):
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = contest.model.build(tf_keras)
        model.set_weights(contest.weights())
        optimizer = workloads.optimizer(tf_keras, contest.model)
        optimizer.build(model.trainable_variables)
    loss_of = workloads.loss(tf_keras, contest.model, "sum")

    def data():
        return (
            tf.data.Dataset.from_tensor_slices(contest.examples())
            .repeat()
            .batch(contest.model.batch, drop_remainder=True)
            .prefetch(2)
        )

    batches = iter(coordinator.create_per_worker_dataset(data))

    @tf.function
    def step(iterator):
        x, y = next(iterator)

        def on_replica(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True)) / contest.model.batch
            variables = model.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        return strategy.run(on_replica, args=(x, y))

    workers = resolver.cluster_spec().num_tasks("worker")
    for epoch in range(run.EPOCHS):
        losses = []
        pending = []
        for _ in range(contest.model.steps):
            pending.append(coordinator.schedule(step, args=(batches,)))
            if len(pending) == IN_FLIGHT * workers:
                losses.append(float(pending.pop(0).fetch()))
                if len(losses) + epoch == 1:
                    run.report_first_step()
        losses += [float(value.fetch()) for value in pending]
        run.report_epoch(epoch + 1, sum(losses) / len(losses))
    run.leave(reports=True)


if __name__ == "__main__":
    main()
