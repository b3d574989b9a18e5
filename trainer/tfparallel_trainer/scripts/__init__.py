"""For people's own scripts: says what to change when Keras' `fit` cannot do what they ask.

Every Python with TF_CONFIG imports `startup`, by a `.pth` file next to the installed package.
"""
