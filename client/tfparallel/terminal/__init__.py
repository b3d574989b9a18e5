"""What people see on a terminal, in a file or in a CI log: tables, progress, summaries.

`display` shows a run while it lasts, `transfer` a copy, `tensorboard_process` TensorBoard.
`job_tables` shows the jobs of a cluster, with their `placement`. `ages` and `wrapping` shape texts.
"""
