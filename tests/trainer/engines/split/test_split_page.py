"""The page on splitting layers says what the rules and the tests say."""

import pathlib
from collections.abc import Mapping

import pytest

from testing import pages, paths
from testing.trainer import split_group
from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import plan
from tfparallel_trainer.engines.split.layers import elementwise
from tfparallel_trainer.engines.split.layers.rules import (
    attention,
    convolution,
    dense,
    embedding,
)
from tfparallel_trainer.engines.split.model import operations, skeleton
from tfparallel_trainer.engines.split.planning import planner
from tfparallel_trainer.objective import replica

PAGE = "how-to/splitting-layers.md"
EXAMPLE = paths.ROOT / "examples/split-cnn"


def test_the_page_names_every_layer_whose_weights_are_divided_and_its_shardings() -> None:
    names = {
        (name.strip(" `").removesuffix("` as the head"), sharding)
        for names, sharding, *_ in pages.rows(PAGE, "## Weights over the tensor axis")
        for name in names.split(",")
    }
    expected_names = {
        (layer.__name__, rule.sharding)
        for module in (attention, convolution, dense, embedding)
        for names, rules in module.RULES.items()
        for layer in operations.layers(names)
        for rule in rules
    }
    shared = {("GroupedQueryAttention", "heads"): ("GroupQueryAttention", "heads")}
    assert names == {shared.get(name, name) for name in expected_names}


def test_the_page_names_every_optimizer() -> None:
    text = (paths.ROOT / "docs" / PAGE).read_text()
    assert all(kind.__name__ in text for kind in elementwise.ELEMENTWISE)
    assert dict(pages.rows(PAGE, "## Optimizers")) == {
        kind.__name__: reason for kind, reason in elementwise.REASONS.items()
    }


def find_shardings(
    degrees: Mapping[shape.Axis, int], folder: pathlib.Path = EXAMPLE
) -> dict[str, str]:
    """The shardings of the layers of a module that chooses some."""
    module = user.load(folder, "shardings.py")
    replica.forget_names()
    model = skeleton.recorded(module, skeleton.build(module, 0))
    choices = split_group.assign(model, degrees).choices
    return {choice.node.name: choice.sharding for choice in choices}


def test_the_shardings_on_the_page_are_those_of_the_example_and_are_granted() -> None:
    text = (paths.ROOT / "docs" / PAGE).read_text()
    asked = text.split("```python\n", 1)[1].split("```", 1)[0]
    assert asked in (EXAMPLE / "shardings.py").read_text()
    shardings = find_shardings({shape.Axis.SPATIAL: 2, shape.Axis.TENSOR: 2})
    granted = user.load(EXAMPLE, "shardings.py").call_with("layer_shardings", None)
    assert len(granted) == 4
    assert granted.items() <= shardings.items()
    with pytest.raises(errors.BadConfigurationError) as refused:
        find_shardings({shape.Axis.SPATIAL: 2, shape.Axis.TENSOR: 1})
    assert f"```text\n{refused.value}\n```" in text


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("lambda model: {one.name: 'row' for one in model.layers[-1:]}", None),
        ("lambda: ['row']", r"layer_shardings returned \['row'\]: return a dictionary"),
        ("lambda: {'dense': 2}", r"layer_shardings returned \{'dense': 2\}: return"),
        ("lambda: 1 / 0", "layer_shardings raised ZeroDivisionError"),
        ("lambda: {'last': 'filters'}", "The model has no layer last"),
    ],
)
def test_shardings_may_follow_from_the_model_and_are_checked(
    function: str, message: str | None, tmp_path: pathlib.Path
) -> None:
    content = (EXAMPLE / "model.py").read_text()
    (tmp_path / "shardings.py").write_text(f"{content}\n\nlayer_shardings = {function}\n")
    if message is None:
        assert find_shardings({shape.Axis.TENSOR: 2}, tmp_path)["dense_1"] == "row"
        return
    with pytest.raises(errors.TrainerError, match=message):
        find_shardings({shape.Axis.TENSOR: 2}, tmp_path)


def test_the_planner_takes_meshes_on_which_wishes_are_granted() -> None:
    replica.forget_names()
    question = plan.Question(folder=str(EXAMPLE), module="shardings.py", devices=8, batch=64)
    chosen_plan = planner.answer(question)
    assert chosen_plan.mesh.spatial > 1
    assert chosen_plan.mesh.tensor > 1


def test_the_rule_on_the_page_is_the_one_that_is_tested() -> None:
    text = (paths.ROOT / "docs" / PAGE).read_text()
    rule = text.split("```python\n", 2)[2].split("```", 1)[0]
    assert rule in (pathlib.Path(__file__).parent / "test_split_users.py").read_text()
