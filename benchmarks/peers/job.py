"""The module of our job: `BENCHMARK_MODEL` names the model."""

import os

import keras

from benchmarks.peers import workloads

NAME = os.environ["BENCHMARK_MODEL"]
MODEL = workloads.MODELS[NAME]


def build_model():
    return MODEL.build(keras)


def compile_model(model):
    loss = workloads.loss(keras, MODEL, "sum_over_batch_size")
    model.compile(workloads.optimizer(keras, MODEL), loss)


def training_data():
    return workloads.draw(NAME)
