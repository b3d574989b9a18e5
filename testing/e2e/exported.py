"""Measures the accuracy of a trained model with plain Keras, without this project."""

import json
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import importlib.util, json, sys
import keras
spec = importlib.util.spec_from_file_location("example", sys.argv[2])
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
model = keras.saving.load_model(sys.argv[1], compile=False)
x, y = example.evaluation_data()
guesses = model.predict(x, verbose=0).argmax(axis=-1)
print(json.dumps({"accuracy": float((guesses == y).mean())}))
"""


def accuracy(model: Path, source: Path) -> float:
    """Load a .keras file in a separate process; return its accuracy over the evaluation data.

    Args:
        model: the file.
        source: the module that it was trained with, of which only the data is used.
    """
    command = [sys.executable, "-c", _PROGRAM, str(model), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["accuracy"])
