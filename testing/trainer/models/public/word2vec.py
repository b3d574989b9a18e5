"""Products of a word's vector with those of one true and some false contexts.

Source: TensorFlow, tutorial "word2vec".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class Word2Vec(keras.Model):
    def __init__(self, vocab_size, embedding_dim, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size, self.embedding_dim = vocab_size, embedding_dim
        self.target_embedding = layers.Embedding(vocab_size, embedding_dim, name="w2v_embedding")
        self.context_embedding = layers.Embedding(vocab_size, embedding_dim)

    def call(self, pair):
        target, context = pair
        if len(target.shape) == 2:
            target = ops.squeeze(target, axis=1)
        word_emb = self.target_embedding(target)
        context_emb = self.context_embedding(context)
        return ops.einsum("be,bce->bc", word_emb, context_emb)

    def get_config(self):
        sizes = {"vocab_size": self.vocab_size, "embedding_dim": self.embedding_dim}
        return {**super().get_config(), **sizes}


def build_model():
    return Word2Vec(60, 8)


def compile_model(model):
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])


def training_data():
    random = np.random.default_rng(34)
    pairs = (random.integers(0, 60, (24, 1)), random.integers(0, 60, (24, 5)))
    return pairs, np.tile(np.eye(5)[0], (24, 1))
