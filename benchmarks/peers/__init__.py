"""The trainer side by side with other frameworks on equal models, weights and batches.

`python -m benchmarks.pages.peers` measures and writes the page. `workloads.py` has the models for
Keras, `torch_models.py` the same for PyTorch. `competitors.py` starts `keras_distributed_fit.py`,
`tf_keras_fit.py`, `tensorflow_loop.py`, `coordinator_loop.py`, `torch_data.py`, `torch_tensor.py`
and `torch_pipeline.py`. For our trainer, the module of the job is `job.py`.
"""
