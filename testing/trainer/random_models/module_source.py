"""Writes a random model as the model file of a user."""

import ast
import functools
import threading
from collections.abc import Iterable

from testing import paths
from testing.trainer.random_models import spec

_PARTS = paths.TRAINER_MODELS / "random_parts.py"
_PARSING = threading.Lock()
"""Python 3.11 miscounts the depth of a tree if two threads parse at once, and raises an error."""


def write(model: spec.Model) -> str:
    """Return the text of a model file."""
    body = "\n\n\n".join((_build_model(model), _compile_model(model), _training_data(model)))
    if model.training.callbacks:
        texts = ", ".join(callback.text() for callback in model.training.callbacks)
        body += f"\n\n\ndef callbacks():\n    return [{texts}]"
    return "\n".join(
        (
            "import keras",
            "import numpy",
            "",
            'keras.config.set_floatx("float64")',
            'keras.config.set_dtype_policy("float64")',
            f"EXAMPLES = {model.training.examples}",
            "",
            "",
            *(f"{text}\n\n" for text in _used(body)),
            body,
            "",
        )
    )


def write_job(job: spec.Job) -> str:
    """Return a job as a comment and its model file."""
    training = job.model.training
    head = (
        f"# {job.layout}; globalBatchSize {training.batch}, epochs {training.epochs},"
        f" seed {training.seed}\n"
    )
    return head + write(job.model)


def needed_nodes(model: spec.Model) -> list[spec.Node]:
    """Return the nodes that outputs depend on, in their order."""
    by_name = {node.name: node for node in model.nodes}
    names = {output.node for output in model.outputs}
    for node in reversed(model.nodes):
        if node.name in names:
            names |= {*node.inputs, node.shared} - {""}
    return [by_name[node.name] for node in model.nodes if node.name in names]


def _build_model(model: spec.Model) -> str:
    nodes = needed_nodes(model)
    read_names = {name for node in nodes for name in node.inputs}
    lines = [
        f"    {entry.name} = keras.Input({entry.shape}, dtype={entry.dtype!r}, name={entry.name!r})"
        for entry in model.inputs
        if entry.name in read_names
    ]
    called_again = {node.shared for node in nodes}
    for node in nodes:
        layer = f"{node.shared or node.name}_layer"
        text = node.layer.text(name=repr(node.name))
        if node.name in called_again:
            lines.append(f"    {layer} = {text}")
        elif not node.shared:
            layer = text
        lines.append(f"    {node.name} = {node.call.format(*node.inputs, layer=layer)}")
    inputs = [entry.name for entry in model.inputs if entry.name in read_names]
    first = inputs[0] if len(inputs) == 1 else _dictionary((name, name) for name in inputs)
    last = _by_output(model, ((output.node, output.node) for output in model.outputs))
    return "\n".join(("def build_model():", *lines, f"    return keras.Model({first}, {last})"))


def _compile_model(model: spec.Model) -> str:
    outputs = model.outputs
    losses = (
        (output.node, "None" if output.loss is None else output.loss.text()) for output in outputs
    )
    lines = [
        "def compile_model(model):",
        f"    optimizer = {model.training.optimizer.text()}",
        *(f"    optimizer.{call}" for call in model.training.optimizer_calls),
        "    model.compile(",
        "        optimizer,",
        f"        loss={_by_output(model, losses)},",
    ]
    if any(output.loss_weight is not None for output in outputs):
        weights = ((output.node, repr(output.loss_weight or 1.0)) for output in outputs)
        lines.append(f"        loss_weights={_by_output(model, weights, listed=True)},")
    if any(output.metrics for output in outputs):
        metrics = ((output.node, repr(list(output.metrics))) for output in outputs)
        lines.append(f"        weighted_metrics={_by_output(model, metrics)},")
    return "\n".join((*lines, "    )"))


def _training_data(model: spec.Model) -> str:
    read_names = {name for node in needed_nodes(model) for name in node.inputs}
    inputs = [entry for entry in model.inputs if entry.name in read_names]
    lines = [
        "def training_data():",
        f"    random = numpy.random.default_rng({model.training.seed})",
    ]
    lines += [f"    {entry.name} = {entry.values}" for entry in inputs]
    names = [entry.name for entry in inputs]
    x = names[0] if len(names) == 1 else _dictionary((name, name) for name in names)
    # An output without a loss has no targets: Keras takes None for it.
    parts = [x, _by_output(model, ((output.node, output.targets) for output in model.outputs))]
    if any(output.sample_weight for output in model.outputs):
        weights = (
            (output.node, output.sample_weight or f"numpy.ones({output.weight_shape})")
            for output in model.outputs
        )
        parts.append(_by_output(model, weights))
    return "\n".join((*lines, f"    return {', '.join(parts)}"))


def _by_output(model: spec.Model, texts: Iterable[tuple[str, str]], *, listed: bool = False) -> str:
    pairs = list(texts)
    if len(model.outputs) == 1:
        return f"[{pairs[0][1]}]" if listed else pairs[0][1]
    return _dictionary(pairs)


def _dictionary(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{name!r}: {text}" for name, text in pairs) + "}"


@functools.cache
def _definitions() -> dict[str, str]:
    """Return the source of what users wrote, by name."""
    text = _PARTS.read_text(encoding="utf-8")
    definitions = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            first = min(
                (decorator.lineno for decorator in node.decorator_list), default=node.lineno
            )
            lines = text.splitlines()[first - 1 : node.end_lineno]
            definitions[node.name] = "\n".join(lines)
    return definitions


def _used(body: str) -> list[str]:
    """Return the sources that a text needs, in their order."""
    with _PARSING:
        definitions = _definitions()
        needed: set[str] = set()
        texts = [body]
        while texts:
            tree = ast.parse(texts.pop())
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            new = (names & definitions.keys()) - needed
            needed |= new
            texts += [definitions[name] for name in new]
    return [text for name, text in definitions.items() if name in needed]
