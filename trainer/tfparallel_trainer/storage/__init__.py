"""Where checkpoints, results and data lie: in a folder, or below a prefix of a bucket.

`directory` is what the other packages use; `folder` and `bucket` implement it. `address` parses
addresses, `connection` opens buckets and explains their errors. `mirror` copies a local output
folder to a bucket, `fetch` copies files from a bucket to the local disk.
"""
