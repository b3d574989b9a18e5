"""A pipeline that one process drives: `single_client.py STEPS BATCH STAGES MICROBATCHES`.

The first process of TF_CONFIG is the client and runs the first stage; each other one is a server
that runs a stage for it. A stage has a thread of the client, a tape for each microbatch that it
holds, and works in the order of 1F1B.
"""

import json
import os
import queue
import socket
import sys
import threading
import time
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.models import layers
from benchmarks.scripts import events
from tfparallel_trainer.engines.split.pipeline import schedule


class Stage:
    def __init__(self, device, count, seed):
        self.device = device
        self.inbox: tuple[queue.Queue[Any], queue.Queue[Any]] = queue.Queue(), queue.Queue()
        random = np.random.default_rng(seed)
        bound = np.sqrt(3 / layers.WIDTH)
        with tf.device(device):
            self.kernels = [
                tf.Variable(random.uniform(-bound, bound, [layers.WIDTH] * 2).astype("float32"))
                for _ in range(count)
            ]
            self.biases = [tf.Variable(tf.zeros([layers.WIDTH])) for _ in range(count)]
        self.variables = [*self.kernels, *self.biases]

    @tf.function(autograph=False)
    def forward(self, x):
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            x = tf.tanh(x @ kernel + bias)
        return x

    @tf.function(autograph=False)
    def loss(self, x, y):
        return tf.reduce_mean(tf.square(self.forward(x) - y))

    @tf.function(autograph=False)
    def add(self, ones, others):
        return [mine + other for mine, other in zip(ones, others, strict=True)]

    @tf.function(autograph=False)
    def update(self, gradients, parts):
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.assign_sub(1e-3 / parts * gradient)


def work(stages, number, x, y, microbatches):
    """Do a stage's part of a step."""
    stage, total, in_flight = stages[number], None, {}
    is_first, is_last = number == 0, number == len(stages) - 1
    with tf.device(stage.device):
        for turn in schedule.one_forward_one_backward(len(stages), microbatches, number):
            part = turn.microbatch
            if turn.work is schedule.Pass.FORWARD:
                inputs = x[part] if is_first else stage.inbox[0].get()
                with tf.GradientTape() as tape:
                    tape.watch(inputs)
                    outputs = stage.loss(inputs, y[part]) if is_last else stage.forward(inputs)
                in_flight[part] = tape, inputs, outputs
                if not is_last:
                    stages[number + 1].inbox[0].put(outputs)
                continue
            tape, inputs, outputs = in_flight.pop(part)
            seed = None if is_last else stage.inbox[1].get()
            sources = stage.variables if is_first else [inputs, *stage.variables]
            gradients = tape.gradient(outputs, sources, output_gradients=seed)
            if not is_first:
                stages[number - 1].inbox[1].put(gradients.pop(0))
            total = gradients if total is None else stage.add(total, gradients)
        stage.update(total, float(microbatches))
        stage.biases[-1].numpy()  # waits until all is done


def main(steps, batch, count, microbatches):
    config = json.loads(os.environ["TF_CONFIG"])
    spec = tf.train.ClusterSpec(config["cluster"])
    task = config["task"]
    if task["type"] != "chief":
        serve(spec, task)
    tf.config.experimental_connect_to_cluster(spec, job_name="chief", task_index=0)
    names = ["chief/task:0", *(f"worker/task:{number}" for number in range(count - 1))]
    devices = [f"/job:{name}/device:CPU:0" for name in names]
    stages = [Stage(device, layers.COUNT // count, number) for number, device in enumerate(devices)]
    x, y = (
        [tf.constant(part) for part in np.split(whole[:batch], microbatches)]
        for whole in layers.training_data()
    )
    for _ in range(steps):
        threads = [
            threading.Thread(target=work, args=(stages, number, x, y, microbatches))
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        events.write("step")


def serve(spec, task):
    """Work for the client until it has ended."""
    server = tf.distribute.Server(spec, job_name=task["type"], task_index=task["index"])
    host, port = spec.task_address("chief", 0).split(":")
    was_there = False
    while True:
        with socket.socket() as probe:
            is_there = probe.connect_ex((host, int(port))) == 0
        if was_there and not is_there:
            del server
            os._exit(0)
        was_there = was_there or is_there
        time.sleep(0.5)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    os._exit(0)
