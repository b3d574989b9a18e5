"""The functions of the user's module, which docs/how-to/model-interface.md describes."""

BUILD_STRATEGY = "build_strategy"
"""Required with strategy `Custom`."""

REQUIRED = ("build_model", "training_data")
OPTIONAL = ("compile_model", "evaluation_data", BUILD_STRATEGY, "callbacks", "layer_ways")

RESULTS = {
    "build_model": "the keras.Model",
    "training_data": "the examples to train on",
    BUILD_STRATEGY: "the tf.distribute.Strategy",
}
"""What each function that may be required returns."""
