"""One process of several that divide a network's images among their devices; says what differs."""

import contextlib
import os

import keras
import numpy as np
import tensorflow as tf

from testing.trainer import split_group
from tfparallel_trainer import tasks
from tfparallel_trainer.comms import collectives, devices, rendezvous, shape
from tfparallel_trainer.contract import environment
from tfparallel_trainer.engines.split.layers import layout, sharded
from tfparallel_trainer.engines.split.model import interpreter, recording

LAYERS = keras.layers


def main(device_count: int) -> None:
    """Compare outputs and gradients with the unsplit network's, and print the largest difference.

    Args:
        device_count: devices of each process.
    """
    job_cluster = tasks.parse(os.environ[environment.TF_CONFIG])
    devices.prepare(device_count, alone=False)
    holds = rendezvous.join(job_cluster, rendezvous.meet(job_cluster, 60.0, print))
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(7)
    model_graph = recording.record(_network())
    values = {key: np.array(variable.value) for key, variable in model_graph.variables.items()}
    image = np.random.default_rng(2).normal(size=(2, 13, 5, 1))
    mesh = shape.MeshShape(spatial=device_count * len(job_cluster.tasks))
    plan = split_group.assign(model_graph, {shape.Axis.SPATIAL: mesh.spatial})
    names = devices.names(job_cluster, device_count)
    ranks = [job_cluster.me * device_count + index for index in range(device_count)]
    groups = [
        {
            axis: collectives.Communicator.for_rank(mesh.group(rank, axis), rank, name)
            for axis in layout.AXES
        }
        for rank, name in zip(ranks, names, strict=True)
    ]

    def run(number: int | None) -> tuple[tf.Tensor, list[tf.Tensor]]:
        values_by_key = {key: tf.constant(value) for key, value in values.items()}
        (output,) = model_graph.output_tensors()
        with tf.GradientTape() as tape:
            tape.watch(values_by_key)
            if number is None:
                part = interpreter.run_nodes(
                    model_graph, model_graph.nodes, {0: tf.constant(image)}, values_by_key, True
                )
                whole = part.tensors[output]
            else:
                for group in groups[number].values():
                    group.begin(collectives.Program.TRAIN)
                arguments = (
                    model_graph.nodes,
                    {0: tf.constant(image)},
                    values_by_key,
                    True,
                    groups[number],
                )
                part = sharded.run_nodes(plan, *arguments, leaving=[output])
                outputs = {output: part.tensors[output]}
                whole = sharded.outputs(plan, outputs, groups[number])[output]
            loss = tf.reduce_sum(whole**3)
        gradients = tape.gradient(loss, values_by_key)
        parts = [
            groups[number][shape.Axis.SPATIAL].sum(gradients[key])
            if number is not None and plan.variables[key].summed
            else gradients[key]
            for key in sorted(values_by_key)
            if model_graph.variables[key].trainable
        ]
        return whole, parts

    def on_devices() -> list[tuple[tf.Tensor, list[tf.Tensor]]]:
        made_here = []
        for number, name in enumerate(names):
            with tf.device(name):
                made_here.append(run(number))
        return made_here

    split = tf.function(on_devices, autograph=False)()
    whole = tf.function(lambda: run(None), autograph=False)()
    expected = tf.nest.flatten(whole)
    worst = max(
        float(np.abs(tensor - other).max())
        for rank in split
        for tensor, other in zip(tf.nest.flatten(rank), expected, strict=True)
    )
    rows = sum(choice.sharding == "rows" for choice in plan.choices)
    print(f"{rows} layers by rows, largest difference {worst:.1e}", flush=True)
    everyone = collectives.Communicator(
        collectives.PROCESSES_KEY, len(job_cluster.tasks), job_cluster.me, names[0]
    )
    with tf.device(names[0]):
        barrier = tf.function(lambda: everyone.sum(tf.ones(())))
        barrier()  # nobody leaves before the others
        # Who leaves first breaks this one, and who still receives the other's end is in it.
        with contextlib.suppress(tf.errors.OpError):
            barrier()
    del holds


def _network() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((13, 5, 1)),
            LAYERS.Conv2D(3, 4, padding="same", activation="tanh"),
            LAYERS.BatchNormalization(),
            LAYERS.MaxPooling2D(2, 1),
            LAYERS.Conv2DTranspose(2, 3, 2),
            LAYERS.GlobalAveragePooling2D(),
        ]
    )


if __name__ == "__main__":
    main(int(os.environ[environment.CPU_DEVICES]))
