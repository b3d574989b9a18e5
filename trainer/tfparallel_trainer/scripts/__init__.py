"""For people's own scripts: says what to change when Keras' `fit` cannot do what they ask."""
