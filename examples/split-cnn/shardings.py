"""The network of model.py, with a sharding chosen for each of its layers with weights."""

from model import build_model, compile_model, evaluation_data, training_data

__all__ = ["build_model", "compile_model", "evaluation_data", "layer_shardings", "training_data"]


def layer_shardings():
    return {
        "conv2d": "rows",  # pattern: half of each image, and a few rows of the other half
        "conv2d_1": "filters",  # tensor: half of the filters
        "dense": "data",  # data: each device does some of the examples
        "dense_1": "row",  # tensor: half of the features
    }
