"""Builds, tags and pushes the images of the Dockerfile: `make images`, or `python3 -m images`.

It needs Python alone. `targets` says what there is to build, `engines` by which programs,
`pip_settings` what a build takes from this machine, `programs` how they are run.
"""
