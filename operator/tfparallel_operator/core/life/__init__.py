"""The life of a job, in the order in which a decision asks.

- `cleanup`: a job that has ended. `dead_nodes`: pods that their node does not end.
- `ending`: a job that succeeds, fails or is suspended.
- `spec_validity`: a job whose newest spec cannot be used.
- `admission`: a job that may not run yet.
- `training`: a job that may: it starts, scales, and gets its missing pods.
- `start`: the start of an attempt, and pods that come before the first status.
- `recovery`: what is done about lost replicas.
- `failure` says why one was lost, `policy` what follows, `restarts` writes a restart ahead.
- `deadlines`, `completion`, `scaling`, `counts`, `slowness`: the questions that these ask.
"""
