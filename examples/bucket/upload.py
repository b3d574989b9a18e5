"""Uploads handwritten digits to an address in a bucket, by the AWS variables of the environment."""

import io
import sys

import numpy as np
import obstore.store
from sklearn import datasets, model_selection

prefix, _, name = sys.argv[1].rpartition("/")
digits = datasets.load_digits()
train_x, test_x, train_y, test_y = model_selection.train_test_split(
    (digits.images / 16).astype("float32"), digits.target, test_size=0.2, random_state=0
)
content = io.BytesIO()
np.savez(content, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
options = {"allow_http": True}  # for a server of your own
store = obstore.store.from_url(prefix, client_options=options)
obstore.put(store, name, content.getvalue())
print(f"{sys.argv[1]}: {content.tell()} bytes")
