"""A script of somebody's own: calls fit for some cases, one after the other.

Arguments: a folder for what it leaves, which steps are verified, then names of cases.
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

folder, verify, *names = sys.argv[1:]
tfparallel_trainer.start()
task = json.loads(os.environ["TF_CONFIG"])["task"]
for name in names:
    case = fitted.CASES[name]
    model = case.build()
    history = tfparallel_trainer.fit(
        model, **case.data(), shuffle=False, verbose=0, verify=verify, **case.arguments()
    )
    path = f"{folder}/{name}-{task['type']}-{task['index']}"
    np.savez(path, *model.get_weights())
    results = {"history": history.history, "epoch": history.epoch, "params": history.params}
    pathlib.Path(f"{path}.json").write_text(json.dumps(results))
