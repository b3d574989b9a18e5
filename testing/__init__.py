"""Code that tests share.

`cluster` starts Kubernetes, `images` builds the images, `trainer` starts and compares trainings,
`operator` runs the operator and its parts, `e2e` talks to a cluster that runs pods.
"""
