"""For people's own scripts: says what to change where their replicas cannot train as they ask.

Every Python with TF_CONFIG imports `startup`, by a `.pth` file next to the installed package.
`explanation` is for errors of Keras' `fit` under a strategy of several processes. `first_step` has
`separation` look whether the replicas train one model.
"""
