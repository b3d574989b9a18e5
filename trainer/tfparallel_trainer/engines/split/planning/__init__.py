"""From a model and devices to a mesh, stages and ways to split layers: what is best and fits."""
