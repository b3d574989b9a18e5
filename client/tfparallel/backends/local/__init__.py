"""Jobs on this machine: the operator's decisions, objects in memory, a process for each pod.

`backend` carries out the client's calls. `detached` starts a job in a separate process, and reads
its folder. `run` runs one job: `cluster` acts as API server, kubelet and garbage collector,
`launch` turns a pod's manifest into a command, and `process` and `supervisor` run the command.
`folders` names the files of a run.
"""
