# Sourced by the scripts here: installs TensorFlow and Keras in a temporary folder. `run` runs the Python program of
# standard input on two logical CPUs, which stand for two GPUs of one machine. Needs python3.11.

TENSORFLOW=2.21.0
KERAS=3.15.1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install "tensorflow-cpu==$TENSORFLOW" "keras==$KERAS" numpy==2.4.6
cat >"$folder/two_devices.py" <<'PYTHON'
import keras
import numpy as np
import tensorflow as tf

keras.config.set_floatx("float64")
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
random = np.random.default_rng(0)
x, y = random.normal(size=(8, 3)), random.normal(size=(8, 2))


def mirrored():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def fit(build, optimizer, strategy=None, examples=8, batch_size=4):
    """Train a new model for one epoch; returns all its weights in one array."""
    keras.utils.set_random_seed(0)
    with (strategy or tf.distribute.get_strategy()).scope():
        model = build()
        model.compile(optimizer(), "mse")
    model.fit(x[:examples], y[:examples], batch_size=batch_size, shuffle=False, verbose=0)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def dense():
    layers = [keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)]
    return keras.Sequential(layers)


def largest_difference(build, optimizer, **data):
    """Between the weights after an epoch on one device and on two."""
    one, two = fit(build, optimizer, **data), fit(build, optimizer, mirrored(), **data)
    return abs(one - two).max()


def refusal(action):
    """The type of the error that an action raises, and what it says."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"
PYTHON

run() {
    { echo "from two_devices import *"; cat; } >"$folder/program.py"
    TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= "$folder/venv/bin/python" "$folder/program.py" 2>"$folder/stderr" ||
        { tail -n 5 "$folder/stderr"; exit 2; }
}

expect() { # WHAT ANSWER WORDS
    if ! grep --quiet --fixed-strings -- "$3" <<<"$2"; then
        echo "changed: $1"$'\n'"expected: $3"$'\n'"came: $2"
        exit 1
    fi
    echo "as seen: $1: $3"
}
