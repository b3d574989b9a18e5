"""Where checkpoints, results and data lie: in a folder, or below a prefix of a bucket.

`directory` is what the other packages use; `folder` and `bucket` implement it, and `bucket` mirrors
a local output folder. `fetch` copies files from a bucket to the local disk.
"""
