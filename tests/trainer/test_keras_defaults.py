"""Each test begins with Keras' default types, whatever the test before it in this file has set."""

import keras


def test_a_module_of_a_job_sets_types() -> None:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def test_the_next_test_has_the_types_of_keras() -> None:
    assert keras.config.floatx() == "float32"
    assert keras.layers.Dense(1).dtype == "float32"
    keras.config.set_floatx("float64")


def test_a_type_alone_is_forgotten_too() -> None:
    assert keras.layers.Dense(1).dtype == "float32"
