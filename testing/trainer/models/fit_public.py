"""A script that trains one of the public models by our fit.

Arguments: the model's name, the examples of a batch, epochs, the seed, and the file of the result.
"""

import importlib
import json
import os
import sys

import keras

import tfparallel_trainer

tfparallel_trainer.start()
name, batch, epochs, seed, result = sys.argv[1:]
module = importlib.import_module(f"public.{name}")
keras.utils.set_random_seed(int(seed))
model = module.build_model()
module.compile_model(model)
x, y, sample_weight = (*module.training_data(), None)[:3]
tfparallel_trainer.fit(
    model, x, y, int(batch), int(epochs), 0, sample_weight=sample_weight, seed=int(seed)
)
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief":
    model.save(result)
