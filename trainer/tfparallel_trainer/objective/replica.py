"""A rank's copy of the model, with its optimizer and its place in the mesh."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.utils import naming  # not in the public API

from tfparallel_trainer import user
from tfparallel_trainer.comms import collectives, shape
from tfparallel_trainer.data import nest
from tfparallel_trainer.objective import checks, loss, phases


@dataclasses.dataclass(frozen=True, slots=True)
class Replica:
    """A rank that trains; `model` and `optimizer` live on `device`."""

    device: str
    model: Any
    data: collectives.Communicator
    """The communicator of this rank with the others along the data axis."""
    terms: list[loss.Term]
    """Terms of the loss: those of the outputs first, then `loss.ADDED`."""
    outputs: tuple[str, ...]
    """Names of the outputs; empty if the model defines its training step itself."""
    seeds: list[tuple[Any, Any]]
    """Variables of random layers and of `generator` (seed and counter) with their first values."""
    seed: int = 0
    """The job's seed."""
    generator: Any = None
    """The generator for Keras' operations without a seed, while a step is traced."""
    computations: Sequence[phases.Computation] = ()
    """The phases of a step, in their order."""
    updates: Any = None
    """Weights that the forward pass assigns (`updates.Updates`). None: it assigns none."""
    is_compiled: bool = False
    """Whether XLA compiles what the rank computes by itself (see `compilation`)."""
    closures: list[Any] = dataclasses.field(default_factory=list)
    """Variables outside model and optimizer that a step reads, as `tracing` finds them."""

    @property
    def optimizer(self) -> Any:
        """The optimizer, or `phases.Optimizers` of several."""
        optimizers = {id(phase.optimizer): phase.optimizer for phase in self.computations}
        if len(optimizers) < 2:
            return self.computations[0].optimizer if optimizers else self.model.optimizer
        variables = [
            variable for optimizer in optimizers.values() for variable in optimizer.variables
        ]
        return phases.Optimizers(variables)

    def by_output(self, values: Sequence[float]) -> dict[str, float]:
        """Name the values of the terms as Keras does; empty for a model with one output.

        The values are not yet multiplied by loss_weights. Terms with weight 0 are omitted.
        """
        named = {
            term.label: float(value) / (term.weight or 1.0)
            for term, value in zip(self.terms, values, strict=True)
            if term.output
        }
        return named if len(named) > 1 else {}

    def state(self) -> list[Any]:
        """The variables that make up the state of training, in a fixed order."""
        seeds = {id(variable) for variable, _ in self.seeds}
        model = [variable for variable in self.model.variables if id(variable) not in seeds]
        return [*model, *self.optimizer.variables, *self.closures]

    def statistics(self) -> list[Any]:
        """The weights that are not trained, such as BatchNormalization's moving statistics."""
        trained = {id(variable) for variable in self.model.trainable_weights}
        return [weight for weight in self.model.weights if id(weight) not in trained]


def build(
    module: user.Module, mesh: shape.MeshShape, rank: int, device: str, seed: int, sample: Any
) -> Replica:
    """Build and compile the user's model on one device, ready to be traced.

    The device is empty where a strategy places variables. The seed of the initial weights is the
    same on every rank. The sample is one example (x, y, sample_weight) with a leading axis of 1.
    """
    group = mesh.group(rank, shape.Axis.DATA)
    with module.seeded(seed), tf.device(device):
        model = module.build_model()
        if isinstance(model, keras.Model):
            module.compile_model(model)
        checks.check(model)
        with (
            module.concerns("compile_model"),
            user.guard(module.path, "calling the model on the first training example raised"),
        ):
            tensors = nest.convert(tf.convert_to_tensor, sample)
            computations, names = phases.build(model, tensors)
        generator = keras.random.SeedGenerator(seed)
        replica = Replica(
            device=device,
            model=model,
            data=collectives.Communicator.for_rank(group, rank, device),
            terms=[term for phase in computations for term in phase.terms],
            outputs=names,
            seeds=[*_seeds(model), (generator.state, generator.state.value.numpy())],
            seed=seed,
            generator=generator,
            computations=computations,
        )
    checks.check_variables(replica.state())
    return replica


def forget_names() -> None:
    """Restart Keras' numbering of names, so that the next model's layers have the same names.

    `keras.utils.clear_session` would also forget the user's settings of Keras.
    """
    naming.reset_uids()


def _seeds(model: Any) -> list[tuple[Any, Any]]:
    weights = {id(variable) for variable in model.weights}
    return [
        (variable, variable.value.numpy())
        for variable in model.variables
        if id(variable) not in weights and "int" in variable.dtype and tuple(variable.shape) == (2,)
    ]
