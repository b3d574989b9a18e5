#!/usr/bin/env bash
# AutoShardPolicy.AUTO divides files that are zipped with memory twice, and counts `take` and `skip` on each worker.
#
# TensorFlow 2.21.0, MultiWorkerMirroredStrategy, two workers, two files of 4 records. AUTO prefers to divide files. Zipped
# with a data set in memory, in this order, records are divided by file and the pairs once more: half of the records are
# lost, and those of the second worker meet labels of others. `take(4)` gives 4 records to each worker, and `skip(4)`
# leaves none to either. Nothing warns. AutoShardPolicy.DATA divides the pairs alone.
set -euo pipefail
source "$(dirname "$0")/keras.bash"

cat >"$folder/worker.py" <<'PYTHON'
import json, os, sys
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
paths = [f"{sys.argv[1]}/{index}-{number}.tfrecord" for number in range(2)]
for number, path in enumerate(paths):
    with tf.io.TFRecordWriter(path) as writer:
        for record in range(4 * number, 4 * number + 4):
            writer.write(str(record).encode())


def elements(data, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    parts = strategy.experimental_distribute_dataset(data.batch(2).with_options(options))
    for part in parts:
        (part,) = strategy.experimental_local_results(part)
        leaves = [[int(one) for one in tensor.numpy()] for tensor in tf.nest.flatten(part)]
        yield from zip(*leaves)


records, labels = tf.data.TFRecordDataset(paths), tf.data.Dataset.range(8)
policies = tf.data.experimental.AutoShardPolicy
for name, data, policy in (
    ("zip", tf.data.Dataset.zip(records, labels), policies.AUTO),
    ("zip by DATA", tf.data.Dataset.zip(records, labels), policies.DATA),
    ("take(4)", records.take(4), policies.AUTO),
    ("skip(4)", records.skip(4), policies.AUTO),
):
    print(f"{index}: {name}:", *elements(data, policy), flush=True)
PYTHON
shown=$("$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json, os, socket, subprocess, sys

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
hosts = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
for one in sockets:
    one.close()
workers = []
for index in range(2):
    config = json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}})
    environment = {**os.environ, "TF_CONFIG": config, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, f"{sys.argv[1]}/worker.py", sys.argv[1]]
    workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
for worker in workers:
    print(*worker.communicate()[:1 if worker.returncode == 0 else 2])
PYTHON
)
expect "records and labels, worker 0" "$shown" "0: zip: (0, 0) (2, 2)"
expect "records and labels, worker 1" "$shown" "1: zip: (5, 1) (7, 3)"
expect "divided by DATA" "$shown" "0: zip by DATA: (0, 0) (2, 2) (4, 4) (6, 6)"
expect "take(4), worker 0" "$shown" "0: take(4): (0,) (1,) (2,) (3,)"
expect "take(4), worker 1" "$shown" "1: take(4): (4,) (5,) (6,) (7,)"
for index in 0 1; do
    grep --quiet "^ *$index: skip(4): *$" <<<"$shown" || expect "skip(4), worker $index" "$shown" "$index: skip(4): nothing"
    echo "as seen: skip(4), worker $index: nothing is left"
done
