"""`tfparallel_trainer.fit`: Keras' fit for scripts, on the trainer's engines and outer loop."""
