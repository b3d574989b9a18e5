"""A custom training loop with ClusterCoordinator and preprocessing layers, in a real cluster.

Source: TensorFlow, tutorial "Parameter server training with ParameterServerStrategy", with a custom
training loop.
"""

import os
import random

import tensorflow as tf

cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    # Workers and servers report failures to the coordinator.
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    server = tf.distribute.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
        protocol=cluster_resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()

NUM_PS = len(cluster_resolver.cluster_spec().as_dict()["ps"])
variable_partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
    min_shard_bytes=(256 << 10), max_shards=NUM_PS
)
strategy = tf.distribute.ParameterServerStrategy(
    cluster_resolver, variable_partitioner=variable_partitioner
)

feature_vocab = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]
label_vocab = ["yes", "no"]

with strategy.scope():
    feature_lookup_layer = tf.keras.layers.StringLookup(vocabulary=feature_vocab, mask_token=None)
    label_lookup_layer = tf.keras.layers.StringLookup(
        vocabulary=label_vocab, num_oov_indices=0, mask_token=None
    )
    raw_feature_input = tf.keras.layers.Input(shape=(3,), dtype=tf.string, name="feature")
    feature_preprocess_stage = tf.keras.Model(
        {"features": raw_feature_input}, feature_lookup_layer(raw_feature_input)
    )
    raw_label_input = tf.keras.layers.Input(shape=(1,), dtype=tf.string, name="label")
    label_preprocess_stage = tf.keras.Model(
        {"label": raw_label_input}, label_lookup_layer(raw_label_input)
    )


def feature_and_label_gen(num_examples=200):
    features = [random.sample(feature_vocab, 3) for _ in range(num_examples)]
    labels = [["yes"] if "avenger" in one else ["no"] for one in features]
    return {"features": features, "label": labels}


examples = feature_and_label_gen()


def preprocess(example):
    features = feature_preprocess_stage({"features": example["features"]})
    return {"features": features}, label_preprocess_stage({"label": example["label"]})


def dataset_fn(_):
    raw_dataset = tf.data.Dataset.from_tensor_slices(examples)
    dataset = raw_dataset.map(preprocess)
    return dataset.shuffle(200).batch(32).repeat()


with strategy.scope():
    model_input = tf.keras.layers.Input(shape=(3,), dtype=tf.int64, name="model_input")
    emb_layer = tf.keras.layers.Embedding(
        input_dim=len(feature_lookup_layer.get_vocabulary()), output_dim=16384
    )
    emb_output = tf.reduce_mean(emb_layer(model_input), axis=1)
    dense_output = tf.keras.layers.Dense(
        units=1, activation="sigmoid", kernel_regularizer=tf.keras.regularizers.L2(1e-4)
    )(emb_output)
    model = tf.keras.Model({"features": model_input}, dense_output)
    optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.001)
    accuracy = tf.keras.metrics.Accuracy()


@tf.function
def step_fn(iterator):
    def replica_fn(batch_data, labels):
        with tf.GradientTape() as tape:
            pred = model(batch_data, training=True)
            per_example_loss = tf.keras.losses.BinaryCrossentropy(
                reduction=tf.keras.losses.Reduction.NONE
            )(labels, pred)
            loss = tf.nn.compute_average_loss(per_example_loss)
            loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        actual_pred = tf.cast(tf.math.greater(pred, 0.5), tf.int64)
        accuracy.update_state(labels, actual_pred)
        return loss

    batch_data, labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch_data, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(dataset_fn)


per_worker_dataset = coordinator.create_per_worker_dataset(per_worker_dataset_fn)
per_worker_iterator = iter(per_worker_dataset)

for epoch in range(4):
    accuracy.reset_states()
    for _ in range(5):
        coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()
    print(f"Finished epoch {epoch}, accuracy is {accuracy.result().numpy():.3f}.", flush=True)

loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
print(f"Final loss is {loss.fetch():.3f}", flush=True)
features, labels = next(iter(dataset_fn(None)))
evaluation = tf.keras.metrics.Accuracy()
evaluation.update_state(labels, tf.cast(tf.math.greater(model(features), 0.5), tf.int64))
print(f"accuracy {evaluation.result().numpy():.3f}", flush=True)
