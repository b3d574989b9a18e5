"""Training under a `tf.distribute.Strategy`: the user's own, or TensorFlow's for TPUs."""
