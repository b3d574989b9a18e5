"""Jobs on this machine: each pod becomes a process.

`backend` does what the client asks for, `detached` starts a job in a process of its own and reads
its folder, `folders` names folders, `summary` shows a run that has ended.
"""
