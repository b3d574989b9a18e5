"""The page on splitting layers says what the rules and the tests say."""

import pathlib

from tests.trainer import test_split_users
from tests.unit import test_docs
from tfparallel_trainer.split.layers import whole
from tfparallel_trainer.split.layers.rules import attention, convolution, dense, einsum, embedding

PAGE = "splitting-layers.md"


def test_the_page_names_every_layer_whose_weights_are_divided_and_its_ways() -> None:
    said = {
        (name.strip(" `"), way)
        for names, way, *_ in test_docs.rows(PAGE, "## Weights over the tensor axis")
        for name in names.split(",")
    }
    known = {
        (layer.__name__, rule.way)
        for module in (attention, convolution, dense, einsum, embedding)
        for layer, rules in module.RULES.items()
        for rule in rules
    }
    shared = {("GroupedQueryAttention", "heads"): ("GroupQueryAttention", "heads")}
    assert said == {shared.get(one, one) for one in known}


def test_the_page_names_every_optimizer() -> None:
    text = (test_docs.ROOT / "docs" / PAGE).read_text()
    assert all(kind.__name__ in text for kind in whole.ELEMENTWISE)
    assert dict(test_docs.rows(PAGE, "## Optimizers")) == {
        kind.__name__: reason for kind, reason in whole.REASONS.items()
    }


def test_the_rule_on_the_page_is_the_one_that_is_tested() -> None:
    text = (test_docs.ROOT / "docs" / PAGE).read_text()
    rule = text.split("```python\n", 1)[1].split("```", 1)[0]
    assert rule in pathlib.Path(str(test_split_users.__file__)).read_text()
