"""What tests stand on and what is no test itself.

`cluster` starts Kubernetes, `images` builds the images, `trainer` starts and compares trainings,
`operator` runs the operator and its parts, `e2e` talks to a cluster that runs pods.
"""
