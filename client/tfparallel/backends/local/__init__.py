"""Jobs on this machine: the operator's decisions, objects in memory, one process for each pod.

`backend` does what the client asks for. `detached` starts a job in a process of its own and reads
its folder. `run` runs one job: `cluster` plays the API server, the kubelet and the garbage
collector, `launch` makes a pod's manifest a command, `process` and `supervisor` run it. `folders`
names the files of a run.
"""
