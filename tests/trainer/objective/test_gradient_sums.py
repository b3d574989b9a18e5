"""Gradients that a rank computes from no examples."""

import numpy as np
import pytest
import tensorflow as tf

from tfparallel_trainer.objective import gradient_sums


@pytest.mark.parametrize("is_empty", [True, False])
def test_of_no_examples_gradients_count_for_nothing_whatever_they_are(is_empty: bool) -> None:
    dense = tf.constant([np.nan, 2.0])
    sparse = tf.IndexedSlices(tf.constant([[np.nan, 2.0]]), tf.constant([1]), tf.constant([3, 2]))
    variables = [tf.zeros(2), tf.zeros((3, 2)), tf.zeros(1)]
    cleared = gradient_sums.zero_if_empty(tf.constant(is_empty), [dense, sparse, None], variables)
    expected = [0.0, 0.0] if is_empty else [np.nan, 2.0]
    np.testing.assert_array_equal(cleared[0], expected)
    np.testing.assert_array_equal(cleared[1].values, [expected])
    np.testing.assert_array_equal(cleared[1].indices, [1])
    assert cleared[2] is None
