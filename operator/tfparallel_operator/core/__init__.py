"""Deciding: `decide(job, children, environment, now)` says what to write. Pure: no I/O, no clock.

The Kubernetes engine and the local cluster observe, call it, and carry out what it returns.

- `decide`: the phases of a decision, in order.
- `context`: what one decision is made on.
- `observation`: what was seen; `layout`: the job with its `replicas`; `view`: their pods.
- `installation`: what holds for every job.
- `decision`: what comes out.
- `life`, `queue`, `pods`, `status`: folders with a map each.
- `pending_reasons`: why a pod waits, by Events and claims.
- `remedies`: sentences on what Kubernetes and exit codes say.
"""
