"""The page on scripts that people have: its names of Keras 2 fail, and those of Keras 3 work."""

import pathlib
import re

import keras
import pytest
import tensorflow as tf

from testing import paths

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # within Keras
ROWS = [
    re.findall("`([^`]+)`", line)
    for line in (paths.PAGES / "how-to/old-scripts.md")
    .read_text()
    .partition("| Keras 2 | Keras 3 |")[2]
    .partition("\n\n")[0]
    .splitlines()[2:]
]


def test_the_table_is_read() -> None:
    assert len(ROWS) > 5
    assert all(len(row) > 1 for row in ROWS)


@pytest.mark.parametrize(
    ("old", "new"), [(old, replacement) for old, *new in ROWS for replacement in new]
)
def test_each_name_of_keras_3_replaces_one_that_fails(
    old: str, new: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    names = {
        "keras": keras,
        "tf": tf,
        "metric": keras.metrics.Mean(),
        "model": model,
        "optimizer": keras.optimizers.SGD(),
    }
    with pytest.raises((AttributeError, ImportError, TypeError, ValueError)):
        eval(old, names)  # noqa: S307  # a line of the page
    eval(new, names)  # noqa: S307  # a line of the page
