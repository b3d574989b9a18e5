"""Rules of `spec.mesh`: what the API server can know of whether a mesh fits its devices.

Devices that only a template asks for are seen by no rule of the API server: `load` looks there.
"""

from tfparallel_operator.api import rules

_AXES = ("data", "stage", "spatial", "tensor")
_TRAINING = ("Chief", "Master", "Worker")

_PRODUCT = " * ".join(f"self.{axis}" for axis in _AXES)
_INFERRED = " + ".join(f"(self.{axis} == -1 ? 1 : 0)" for axis in _AXES)


def _cuts(mesh: str) -> str:
    """The number of sharded dimensions of a mesh."""
    return f"(has({mesh}.cuts) ? size({mesh}.cuts) : 0)"


MESH_RULES = (
    rules.Rule(
        f"{_PRODUCT} != 0",
        "an axis of the mesh is 0: give a number from 1, or -1 for as many as the devices give",
    ),
    rules.Rule(
        f"{_INFERRED} <= 1",
        "several axes of the mesh are -1: only one may be, give the others a number",
    ),
    rules.Rule(
        f"!self.auto || ({_PRODUCT} == 1 && self.data == 1 && self.stage == 1"
        f" && self.spatial == 1 && self.microbatches == 1 && {_cuts('self')} == 0)",
        "mesh.auto lets the planner choose axes, cuts and microbatches: remove those that are"
        " given, or remove auto",
    ),
    rules.Rule(
        f"{_cuts('self')} == 0 || self.stage == -1 || self.auto"
        f" || self.stage == {_cuts('self')} + 1",
        "mesh.cuts names the layer that each stage but the first begins with: give as many names"
        " less one as mesh.stage",
    ),
    rules.Rule(
        "!self.shardOptimizer || self.auto || self.data != 1",
        "mesh.shardOptimizer shares the optimizer's state among the ranks along mesh.data, which"
        " is 1: give data at least 2, or remove shardOptimizer",
    ),
)
"""Rules of the mesh alone."""


def _has(role: str) -> str:
    return f"'{role}' in self.tfReplicaSpecs"


def _devices(role: str) -> str:
    spec = f"self.tfReplicaSpecs['{role}']"
    return f"({_has(role)} ? {spec}.replicas * (has({spec}.devices) ? {spec}.devices : 1) : 0)"


def _unlike(role: str, other: str) -> str:
    """Two roles whose replicas have different numbers of devices."""
    left, right = (f"self.tfReplicaSpecs['{name}']" for name in (role, other))
    return (
        f"({_has(role)} && {_has(other)} && (has({left}.devices) != has({right}.devices)"
        f" || (has({left}.devices) && {left}.devices != {right}.devices)))"
    )


_ALL_DEVICES = f"({' + '.join(map(_devices, _TRAINING))})"
_MESH_DEVICES = f"({' * '.join(f'self.mesh.{axis}' for axis in _AXES)})"
"""Negative if one axis is -1. Then the product of the others must divide the number of devices."""

HAS_REST = f"{_MESH_DEVICES} < 0"
"""Whether one axis of the mesh is -1, so that it fits any number of devices."""

_KNOWN = (
    "self.tfReplicaSpecs.all(role, has(self.tfReplicaSpecs[role].devices)"
    " || !has(self.tfReplicaSpecs[role].template))"
)
"""Whether the spec gives the number of devices. A template may request more than one."""

_DATA = (
    f"(self.mesh.data == -1 && {_MESH_DEVICES} < 0"
    f" ? {_ALL_DEVICES} / -{_MESH_DEVICES} : self.mesh.data)"
)
"""Replicas of the model; for an invalid mesh it may be less than 1."""

_NUMBERS = ", ".join(f"self.mesh.{axis}" for axis in _AXES)

SPEC_RULES = (
    rules.Rule(
        "has(self.mesh) == (has(self.strategy) && self.strategy == 'ModelSplit')",
        "mesh and strategy ModelSplit belong together: give both (mesh: {auto: true} lets the"
        " planner choose), or neither",
    ),
    rules.Rule(
        "!has(self.mesh) || has(self.trainer)",
        "strategy ModelSplit is the shipped trainer's: add trainer, or choose another strategy",
    ),
    rules.Rule(
        "!has(self.mesh) || !('Evaluator' in self.tfReplicaSpecs)",
        "strategy ModelSplit evaluates on the mesh that trains, because one process may not hold"
        " the model: remove Evaluator",
    ),
    rules.Rule(
        "!has(self.mesh) || !self.enableDynamicWorker",
        "strategy ModelSplit needs all its replicas at once: remove enableDynamicWorker",
    ),
    rules.Rule(
        f"!has(self.mesh) || !({_unlike('Chief', 'Worker')} || {_unlike('Master', 'Worker')})",
        "a mesh needs equally many devices in each replica: give Chief and Worker the same devices",
    ),
    rules.Rule(
        f"!has(self.mesh) || self.mesh.auto || !{_KNOWN} || ({_MESH_DEVICES} < 0"
        f" ? {_ALL_DEVICES} % -{_MESH_DEVICES} == 0 : {_MESH_DEVICES} == {_ALL_DEVICES})",
        "the mesh does not fit the devices: the product of its axes is replicas x devices, or"
        " divides it when one axis is -1",
        message_expression="'mesh is data %d x stage %d x spatial %d x tensor %d, which does not"
        " fit the %d devices of all replicas. Change an axis, replicas or devices'"
        f".format([{_NUMBERS}, {_ALL_DEVICES}])",
    ),
    rules.Rule(
        f"!has(self.mesh) || self.mesh.auto || {_cuts('self.mesh')} == 0 || self.mesh.stage != -1"
        f" || !{_KNOWN} || {_MESH_DEVICES} >= 0"
        f" || {_ALL_DEVICES} / -{_MESH_DEVICES} == {_cuts('self.mesh')} + 1",
        "mesh.stage is -1, and the devices make another number of stages than mesh.cuts: change one"
        " of them",
    ),
    rules.Rule(
        f"!has(self.mesh) || !has(self.trainer) || self.mesh.auto || !{_KNOWN} || {_DATA} < 1"
        f" || (self.trainer.globalBatchSize >= {_DATA} && (self.mesh.microbatches == 1"
        f" || self.trainer.globalBatchSize % ({_DATA} * self.mesh.microbatches) == 0))",
        "trainer.globalBatchSize is not divisible by mesh.data x mesh.microbatches: change one of"
        " them",
        message_expression="'trainer.globalBatchSize is %d, which is not divisible by mesh.data %d"
        " x mesh.microbatches %d: change one of them'.format([self.trainer.globalBatchSize,"
        f" {_DATA}, self.mesh.microbatches])",
    ),
    rules.Rule(
        "has(self.mesh) == has(oldSelf.mesh) && (!has(self.mesh) || self.mesh == oldSelf.mesh)",
        "mesh cannot change once the job exists: delete the job and apply it again",
    ),
)
"""Rules between the mesh and the rest of the spec."""
