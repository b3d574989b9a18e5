"""A script that trains with parameter servers; each of its processes runs all of it.

Arguments: a folder for what it leaves, what it gives fit ("model" or "function"), names of cases.
"""

import importlib
import json
import os
import pathlib
import sys

import keras
import numpy as np

import tfparallel_trainer

keras.config.set_floatx("float64")
fitted = importlib.import_module("fitted")

folder, kind, name = sys.argv[1:]
case = fitted.CASES[name]
model = case.build() if kind == "model" else case.build
history = tfparallel_trainer.fit(model, **case.data(), shuffle=False, **case.arguments())
task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
np.savez(f"{folder}/{task}", *history.model.get_weights())
pathlib.Path(f"{folder}/{task}.json").write_text(
    json.dumps({"history": history.history, "same": history.model is model})
)
print("after fit", flush=True)
