"""Random models, each trained by a random job and compared with Keras' own `fit` in one process.

`python -m testing.trainer.random_models --help`. A seed and a number give a job: `drawing` draws a
`spec.Model` (`layers`, `spatial` and `training` hold the tables), `module_source` writes it as a
model file, `judging` trains it and says how that ended, `shrinking` makes a failure small, and
`campaign` runs many jobs, whose `outcomes` a file keeps, from which the next command resumes.
"""
