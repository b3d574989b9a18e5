"""For people's own scripts: says what to change where their replicas cannot train as they ask.

The operator sets `TFPARALLEL_ON_SEPARATE_TRAINING` for replicas that run a script. There, and in
no other program, a `.pth` file next to the installed package has Python import `startup`: a script
is any command, so nothing else of ours runs in the process that trains. `explanation` is for errors
of Keras' `fit` under a strategy of several processes. `first_step` has `separation` look whether
the replicas train one model.
"""
