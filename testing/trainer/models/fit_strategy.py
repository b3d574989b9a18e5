"""A script that makes a strategy itself, builds its model in scope, and then calls our fit.

Arguments: a folder for what it leaves.
"""

import importlib
import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

import tfparallel_trainer

strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.config.set_floatx("float64")
fitted = importlib.import_module("fitted")
case = fitted.CASES["EarlyStopping"]
with strategy.scope():
    model = case.build()
history = tfparallel_trainer.fit(model, **case.data(), shuffle=False, **case.arguments())
assert history.model is model
task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
np.savez(f"{sys.argv[1]}/{task}", *model.get_weights())
