"""The text of a model.py whose model is one Dense layer."""

from collections.abc import Sequence

_TEXT = """
{imports}
import keras
import numpy


def build_model():
    return keras.Sequential([keras.Input(({width},)), keras.layers.Dense({units})])


def compile_model(model):
    model.compile(optimizer="sgd", loss="mse")


def training_data():
    {first}
    x = numpy.ones((64, {width}), "float32")
    return x, x[:, :{units}]
"""


def dense(
    *imports: str, width: int = 3, units: int | str = 1, before_data: Sequence[str] = ()
) -> str:
    """Return the text of a module that trains a Dense layer on ones.

    Args:
        imports: lines that import more than Keras and NumPy.
        width: of the input.
        units: of the layer, at most `width`; text: an expression.
        before_data: what each replica does before it makes its data.
    """
    first = "\n    ".join(before_data)
    return _TEXT.format(imports="\n".join(imports), width=width, units=units, first=first)
