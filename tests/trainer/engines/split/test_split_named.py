"""Stages that begin where their names say."""

import pytest

from testing.trainer import split_graphs
from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.pipeline import cutting

MODEL = split_graphs.chain(["sees/conv", "sees/flat", "tells/dense", "sees/conv#2", "tells/out"])


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        ([], []),
        (["sees/flat"], [1]),
        (["tells"], [2]),
        (["tells/dense", "tells/out"], [2, 4]),
        (["sees/flat", "tells"], [1, 2]),
    ],
)
def test_a_stage_begins_with_the_first_call(names: list[str], ends: list[int]) -> None:
    assert cutting.ends_of_names(MODEL, names) == ends


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (
            ["tell"],
            "'tell', and the model calls sees/conv, sees/flat, tells/dense, tells/out: give",
        ),
        (["sees"], "'sees', which is not called behind the first layer: give names in the order"),
        (["tells", "sees/flat"], "'sees/flat', which is not called behind 'tells'"),
        (["tells", "tells/dense"], "'tells/dense', which is not called behind 'tells'"),
    ],
)
def test_names_that_are_no_cuts_are_refused(names: list[str], sentence: str) -> None:
    with pytest.raises(errors.BadConfigurationError, match=sentence):
        cutting.ends_of_names(MODEL, names)


def test_of_many_names_the_first_are_listed() -> None:
    model = split_graphs.chain([f"layer_{number}" for number in range(40)])
    with pytest.raises(errors.BadConfigurationError, match="layer_29 and more: give"):
        cutting.ends_of_names(model, ["none"])
