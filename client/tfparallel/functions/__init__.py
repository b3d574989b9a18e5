"""A function of Python as a job: `TrainerClient.train(func=...)`.

`program` reads the function's source and writes the program that calls it, `outer_names` finds what
the source needs and does not define, `arguments` checks that arguments are data, and `job` builds
the job of a script that runs the program.
"""
