"""Draws a random job from a seed and a number."""

import dataclasses
import math
import random as randoms

from testing.trainer.random_models import draws, layers, spatial, spec, training

LAYOUTS_PER_MODEL = 4
"""Jobs that share a model, and with it the training in one process."""
_LARGEST = 300
"""Elements of a tensor, for one example."""

_MODEL_SPLIT = "ModelSplit"


def _split(devices: int, processes: int = 1, **mesh: object) -> spec.JobLayout:
    return spec.JobLayout(_MODEL_SPLIT, processes, devices, mesh)


LAYOUTS: tuple[tuple[spec.JobLayout, int], ...] = (
    (spec.JobLayout("MultiWorkerMirrored"), 2),
    (spec.JobLayout("Mirrored", 1, 2), 6),
    (spec.JobLayout("Mirrored", 1, 3), 3),
    (spec.JobLayout("MultiWorkerMirrored", 2), 4),
    (spec.JobLayout("MultiWorkerMirrored", 3), 1),
    (spec.JobLayout("MultiWorkerMirrored", 2, 2), 1),
    (spec.JobLayout("ParameterServer", 1, 1), 2),
    (_split(2, stage=2), 2),
    (_split(2, stage=2, microbatches=2), 3),
    (_split(3, stage=3, microbatches=2), 1),
    (_split(2, stage=2, microbatches=3, schedule="GPipe"), 1),
    (_split(2, tensor=2), 4),
    (_split(2, data=2), 2),
    (_split(2, spatial=2), 2),
    (_split(4, data=2, stage=2, microbatches=2), 1),
    (_split(4, data=2, tensor=2), 1),
    (_split(4, stage=2, tensor=2, microbatches=2), 1),
    (_split(4, data=2, spatial=2), 1),
    (_split(1, 2, stage=2, microbatches=2), 1),
    (_split(1, 2, tensor=2), 1),
)
"""Each with how often it is drawn."""


def draw_jobs(seed: int, number: int) -> list[spec.Job]:
    """Return the jobs of the model that has a number."""
    random = randoms.Random(f"{seed}/{number}")  # noqa: S311
    model = draw_model(random)
    layouts = _draw_layouts(random, model)
    divisor = math.lcm(*(layout.divisor for layout in layouts))
    smallest = max(layout.batch_ranks for layout in layouts)
    smallest = -(-smallest // divisor) * divisor
    batch = random.randrange(smallest, smallest + 9, divisor)
    examples = random.randint(batch + 1, 4 * batch)
    if draws.is_drawn(random, 0.15):
        examples = batch * random.choice((2, 3)) + 1  # a last batch of one example
    changed = dataclasses.replace(
        model.training, batch=batch, examples=examples, seed=random.randrange(1000)
    )
    model = dataclasses.replace(model, training=changed)
    return [spec.Job(model, layout) for layout in layouts]


def _draw_layouts(random: randoms.Random, model: spec.Model) -> list[spec.JobLayout]:
    """Draw layouts; docs/how-to/model-interface.md says what microbatches do to normalisation."""
    has_images = any(len(tensor_input.shape) == 3 for tensor_input in model.inputs)
    suitable = [
        (layout, weight)
        for layout, weight in LAYOUTS
        if not (model.has_batch_normalization and (layout.mesh or {}).get("microbatches"))
        if has_images or "spatial" not in (layout.mesh or {})
    ]
    chosen: list[spec.JobLayout] = []
    while len(chosen) < LAYOUTS_PER_MODEL:
        layouts, weights = zip(*suitable, strict=True)
        layout = random.choices(layouts, weights)[0]
        if layout not in chosen:
            chosen.append(layout)
    return chosen


def draw_model(random: randoms.Random) -> spec.Model:
    """Draw a model and its training, with a batch that the layouts decide later."""
    graph = _Graph(random)
    for number in range(random.choice((1, 1, 1, 2, 2, 3))):
        graph.add_input(number)
    for _ in range(random.randint(1, 7)):
        graph.add_layer()
    outputs = graph.add_outputs(random.choice((1, 1, 1, 2, 2, 3)))
    optimizer, calls = training.draw_optimizer(random)
    return spec.Model(
        inputs=tuple(graph.inputs),
        nodes=tuple(graph.nodes),
        outputs=tuple(outputs),
        training=spec.Training(
            optimizer=optimizer,
            optimizer_calls=calls,
            callbacks=training.draw_callbacks(random, optimizer),
            epochs=random.choice((2, 2, 3)),
        ),
    )


class _Graph:
    """A graph that grows; tensors are known by the names of their nodes."""

    def __init__(self, random: randoms.Random) -> None:
        self.inputs: list[spec.Input] = []
        self.nodes: list[spec.Node] = []
        self._random = random
        self._shapes: dict[str, draws.Shape] = {}
        self._unused: list[str] = []

    def add_input(self, number: int) -> None:
        """Add numbers of some rank, or tokens with an embedding."""
        random = self._random
        kind = random.choice(("vector", "vector", "sequence", "image", "image", "tokens", "volume"))
        name = f"input_{number}"
        if kind == "tokens":
            self._add_tokens(name)
            return
        features = random.choice((1, 2, 3, 4, 4))
        length = random.choice((3, 4, 5, 6))
        shape: draws.Shape = {
            "vector": (random.choice((2, 3, 4, 6)),),
            "sequence": (length, features),
            "image": (random.choice((4, 5, 6, 8)), random.choice((4, 6)), features),
            "volume": (3, 4, 4, random.choice((1, 2))),
        }[kind]
        numbers = ", ".join(map(str, shape))
        values = f"random.normal(size=(EXAMPLES, {numbers}))"
        if kind == "sequence" and draws.is_drawn(random, 0.4):
            values += f" * (numpy.arange({length}) < {_lengths(length)})[:, :, None]"
        self.inputs.append(spec.Input(name, shape, "float64", values))
        self._add(name, shape)

    def _add_tokens(self, name: str) -> None:
        random = self._random
        length, vocabulary = random.choice((3, 4, 5)), random.choice((5, 8, 12))
        dtype = "int64"
        values = (
            f"random.integers(1, {vocabulary}, size=(EXAMPLES, {length}))"
            f" * (numpy.arange({length}) < {_lengths(length)})"
        )
        tokens = name
        if draws.is_drawn(random, 0.2):
            dtype = "string"
            vocabulary_words = [f"w{number}" for number in range(vocabulary - 2)]
            values = f"random.choice({vocabulary_words!r}, size=(EXAMPLES, {length}))"
            lookup = draws.layer("StringLookup", {}, vocabulary=vocabulary_words)
            tokens = f"lookup_{name}"
            self.nodes.append(spec.Node(tokens, lookup, (name,)))
        elif draws.is_drawn(random, 0.15):
            mode = random.choice(("multi_hot", "count"))
            encoding = draws.layer("CategoryEncoding", {}, num_tokens=vocabulary, output_mode=mode)
            self.inputs.append(spec.Input(name, (length,), dtype, values))
            self.nodes.append(spec.Node(f"encoding_{name}", encoding, (name,)))
            self._add(f"encoding_{name}", (vocabulary,))
            return
        self.inputs.append(spec.Input(name, (length,), dtype, values))
        width = draws.units(random)
        options = draws.weight_options(random, "embeddings", activation=False)
        options |= {"mask_zero": "True"} if draws.is_drawn(random, 0.5) else {}
        embedding = draws.layer(
            "Embedding", options, input_dim=vocabulary, output_dim=width
        ).without("activity_regularizer")
        self.nodes.append(spec.Node(f"embedding_{name}", embedding, (tokens,)))
        self._add(f"embedding_{name}", (length, width))

    def _add(self, name: str, shape: draws.Shape) -> None:
        self._shapes[name] = shape
        self._unused.append(name)

    def add_layer(self) -> None:
        """Add a layer on a tensor, a merge of two, attention, or a layer that is called again."""
        random = self._random
        source = random.choice(self._unused if draws.is_drawn(random, 0.7) else [*self._shapes])
        shape = self._shapes[source]
        alike = [name for name, other in self._shapes.items() if other == shape]
        if draws.is_drawn(random, 0.2) and len(alike) > 1:
            self._add_merge(source, alike)
        elif len(shape) == 2 and draws.is_drawn(random, 0.15):
            self._add_attention(source)
        elif draws.is_drawn(random, 0.12) and self._add_shared():
            return
        else:
            drawing = layers.draw(random, shape)
            if drawing is None or not 0 < math.prod(drawing[1]) <= _LARGEST:
                return
            self._add_node(drawing[0], (source,), drawing[1])

    def _add_node(
        self,
        layer: spec.Construction,
        inputs: tuple[str, ...],
        shape: draws.Shape,
        call: str = "{layer}({0})",
        shared: str = "",
    ) -> str:
        kind = layer.kind.rpartition(".")[2].lower()
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(spec.Node(name, layer, inputs, call, shared))
        self._unused = [name for name in self._unused if name not in inputs]
        self._add(name, shape)
        return name

    def _add_merge(self, source: str, alike: list[str]) -> None:
        other = self._random.choice([name for name in alike if name != source])
        layer, shape = layers.merge(self._random, self._shapes[source])
        self._add_node(layer, (source, other), shape, "{layer}([{0}, {1}])")

    def _add_attention(self, source: str) -> None:
        shape = self._shapes[source]
        values = [
            name for name, other in self._shapes.items() if len(other) == 2 and other[1] == shape[1]
        ]
        value = self._random.choice([*values, source])
        layer, call = layers.attention(self._random, shape[1])
        self._add_node(layer, (source, value), shape, call)

    def _add_shared(self) -> bool:
        """Call a layer again on another tensor of the same shape."""
        pairs = [
            (node, name)
            for node in self.nodes
            if len(node.inputs) == 1 and not node.shared and node.inputs[0] in self._shapes
            for name, shape in self._shapes.items()
            if shape == self._shapes[node.inputs[0]] and name != node.inputs[0]
            if node.name in self._shapes
        ]
        if not pairs:
            return False
        node, name = self._random.choice(pairs)
        self._add_node(node.layer, (name,), self._shapes[node.name], shared=node.name)
        return True

    def add_outputs(self, count: int) -> list[spec.Output]:
        """Give every tensor that nothing takes to one of the outputs."""
        random = self._random
        leaves = list(self._unused)
        groups = [leaves[number::count] for number in range(count)]
        outputs = []
        for number, group in enumerate(filter(None, groups)):
            source = self._join(group)
            shape = self._shapes[source]
            features = random.choice((1, 2, 3, 4, 4))
            shape = (*shape[:-1], features)
            targets, activation, loss = training.draw_head(random, shape)
            options = {} if activation is None else {"activation": repr(activation)}
            head = draws.layer("Dense", options, units=features)
            name = f"output_{number}"
            # Keras weighs each step of a sequence by itself.
            weight_shape = "EXAMPLES" if len(shape) == 1 else f"(EXAMPLES, {shape[0]})"
            self.nodes.append(spec.Node(name, head, (source,)))
            weight = "" if loss is None else training.draw_weights(random, weight_shape)
            outputs.append(
                spec.Output(
                    node=name,
                    loss=loss,
                    targets=targets,
                    loss_weight=0.4 if draws.is_drawn(random, 0.2) else None,
                    sample_weight=weight,
                    weight_shape=weight_shape,
                    metrics=("mae",) if draws.is_drawn(random, 0.2) else (),
                )
            )
        if all(output.loss is None for output in outputs):
            outputs[0] = dataclasses.replace(
                outputs[0], loss=training.keras_loss("MeanSquaredError")
            )
        return outputs

    def _join(self, group: list[str]) -> str:
        """Join tensors to the one that an output's layer takes."""
        random = self._random
        if len(group) == 1 and len(self._shapes[group[0]]) == 2 and draws.is_drawn(random, 0.4):
            return group[0]  # one value per step of a sequence
        vectors = [self._vector(name) for name in group]
        if len(vectors) == 1:
            return vectors[0]
        places = ", ".join(f"{{{number}}}" for number in range(len(vectors)))
        total = sum(self._shapes[name][0] for name in vectors)
        layer = draws.layer("Concatenate", {})
        return self._add_node(layer, tuple(vectors), (total,), f"{{layer}}([{places}])")

    def _vector(self, name: str) -> str:
        shape = self._shapes[name]
        if len(shape) == 1:
            return name
        draw = self._random.choice((layers.flatten, spatial.global_pooling))
        drawing = draw(self._random, shape)
        assert drawing is not None
        return self._add_node(drawing[0], (name,), drawing[1])


def _lengths(longest: int) -> str:
    return f"random.integers(1, {longest + 1}, size=(EXAMPLES, 1))"
