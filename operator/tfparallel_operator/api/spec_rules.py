"""Rules between the fields of a job's spec, except its mesh."""

from tfparallel_operator.api import mesh_rules, rules

ROLE_RULES = rules.Rules(
    rules.Rule(
        "self.all(role, role in ['Chief', 'Master', 'Worker', 'PS', 'Evaluator'])",
        "the roles are Chief, Master, Worker, PS and Evaluator, spelt like this",
    ),
    rules.Rule(
        "!('Chief' in self && 'Master' in self)",
        "Master is TFJob's older name of Chief: give one of them, not both",
    ),
    rules.Rule(
        "!('Chief' in self) || self['Chief'].replicas == 1",
        "a job has one chief: set Chief.replicas to 1",
    ),
    rules.Rule(
        "!('Master' in self) || self['Master'].replicas == 1",
        "a job has one master: set Master.replicas to 1",
    ),
    rules.Rule(
        "!('Evaluator' in self) || self['Evaluator'].replicas == 1",
        "a job has one evaluator: set Evaluator.replicas to 1",
    ),
    rules.Rule(
        "!('PS' in self) || 'Worker' in self",
        "parameter servers need workers: add Worker",
    ),
    rules.Rule(
        "self.all(role, role == 'Worker'"
        " || (!has(self[role].minReplicas) && !has(self[role].maxReplicas)))",
        "only workers come and go: remove minReplicas and maxReplicas of the other roles",
    ),
    rules.Rule(
        "!('Worker' in self) || ((!has(self['Worker'].minReplicas)"
        " || self['Worker'].minReplicas <= self['Worker'].replicas)"
        " && (!has(self['Worker'].maxReplicas)"
        " || self['Worker'].replicas <= self['Worker'].maxReplicas))",
        "Worker.replicas is not between its minReplicas and maxReplicas: change one of them",
    ),
    rules.Rule(
        "'Chief' in self || 'Master' in self || 'Worker' in self",
        "nothing would train: add Worker or Chief",
    ),
)
"""Rules of `spec.tfReplicaSpecs`."""

_ELASTIC = (
    "('Worker' in self.tfReplicaSpecs && (has(self.tfReplicaSpecs['Worker'].minReplicas)"
    " || has(self.tfReplicaSpecs['Worker'].maxReplicas)))"
)
"""Whether workers can be added and removed."""


def _manager(spec: str) -> str:
    policy = f"{spec}.runPolicy"
    older = f"has({policy}) && has({policy}.managedBy) ? {policy}.managedBy : ''"
    return f"(has({spec}.managedBy) ? {spec}.managedBy : {older})"


def _suspended(spec: str) -> str:
    return f"(has({spec}.runPolicy) && {spec}.runPolicy.suspend)"


def _equal(path: str) -> str:
    """Return the expression that a field below optional fields is unchanged."""
    steps = path.split(".")
    before = [".".join(["{0}", *steps[: depth + 1]]) for depth in range(len(steps))]
    exists = " && ".join(f"has({step})" for step in before)
    value = f"({exists} ? [{before[-1]}] : [])"
    return f"{value.format('self')} == {value.format('oldSelf')}"


_SAME_GANG = f"{_equal('scheduling.gang')} && {_equal('runPolicy.schedulingPolicy')}"

FAILURE_RULES = rules.Rules(
    rules.Rule(
        "self.action != 'Ignore' || (has(self.roles) && size(self.roles) > 0"
        " && self.roles.all(role, role in ['Worker', 'Evaluator']))",
        "training cannot go on without its chief or a server: with action Ignore, set roles to"
        " Worker, Evaluator or both",
    ),
)
"""Rules of each rule in `spec.runPolicy.failurePolicy`."""

SPEC_RULES = rules.Rules(
    rules.Rule(
        "has(self.trainer)"
        " || self.tfReplicaSpecs.all(role, has(self.tfReplicaSpecs[role].template))",
        "a role has no template: add one with a container named tensorflow, or set spec.trainer to"
        " run the shipped trainer",
    ),
    rules.Rule(
        "!has(self.trainer) || !('Evaluator' in self.tfReplicaSpecs)"
        " || has(self.trainer.checkpoint)",
        "the evaluator reads checkpoints: give trainer.checkpoint, or remove Evaluator",
    ),
    rules.Rule(
        "!has(self.trainer) || !has(self.trainer.maxStaleness) || 'PS' in self.tfReplicaSpecs",
        "trainer.maxStaleness bounds asynchronous training, which needs servers: add PS, or remove"
        " maxStaleness",
    ),
    rules.Rule(
        "!has(self.strategy) || self.strategy != 'ParameterServer' || 'PS' in self.tfReplicaSpecs",
        "strategy ParameterServer needs servers: add PS, or remove strategy",
    ),
    rules.Rule(
        "!has(self.strategy) || self.strategy == 'ParameterServer'"
        " || !('PS' in self.tfReplicaSpecs)",
        "only strategy ParameterServer uses servers: remove PS, or remove strategy",
    ),
    rules.Rule(
        "!has(self.strategy) || self.strategy != 'Mirrored'"
        " || !('Worker' in self.tfReplicaSpecs)"
        " || (self.tfReplicaSpecs['Worker'].replicas == 1"
        " && !('Chief' in self.tfReplicaSpecs) && !('Master' in self.tfReplicaSpecs))",
        "strategy Mirrored trains on the devices of one replica: give one Chief or one Worker, or"
        " set strategy to MultiWorkerMirrored",
    ),
    rules.Rule(
        "!has(self.trainer) || !has(self.strategy) || self.strategy != 'TPU'"
        " || !('Worker' in self.tfReplicaSpecs)"
        " || (self.tfReplicaSpecs['Worker'].replicas == 1"
        " && !('Chief' in self.tfReplicaSpecs) && !('Master' in self.tfReplicaSpecs))",
        "strategy TPU drives a whole TPU from one replica: give one Chief or one Worker",
    ),
    rules.Rule(
        "has(self.strategy) == has(oldSelf.strategy)"
        " && (!has(self.strategy) || self.strategy == oldSelf.strategy)",
        "strategy cannot change once the job exists: delete the job and apply it again",
    ),
    rules.Rule(
        "has(self.trainer) == has(oldSelf.trainer)"
        " && (!has(self.trainer) || self.trainer == oldSelf.trainer)",
        "trainer cannot change once the job exists: delete the job and apply it again",
    ),
    rules.Rule(
        "self.tfReplicaSpecs.all(role, role in oldSelf.tfReplicaSpecs)"
        " && oldSelf.tfReplicaSpecs.all(role, role in self.tfReplicaSpecs"
        " && (self.tfReplicaSpecs[role].replicas == oldSelf.tfReplicaSpecs[role].replicas"
        f" || (role == 'Worker' && {_ELASTIC})))",
        "roles and their replicas cannot change once the job exists, unless tfReplicaSpecs.Worker"
        " has maxReplicas or minReplicas: delete the job and apply it again",
    ),
    rules.Rule(
        f"!{_ELASTIC} || 'PS' in self.tfReplicaSpecs || !has(self.strategy)"
        " || self.strategy == 'MultiWorkerMirrored'"
        f" || (has(self.mesh) && {mesh_rules.HAS_REST})",
        "workers can come and go with MultiWorkerMirrored, ParameterServer, and ModelSplit if one"
        " axis is -1: remove minReplicas and maxReplicas, or change strategy or mesh",
    ),
    rules.Rule(
        "!has(self.managedBy) || !has(self.runPolicy) || !has(self.runPolicy.managedBy)"
        " || self.managedBy == self.runPolicy.managedBy",
        "managedBy and runPolicy.managedBy differ: remove runPolicy.managedBy",
    ),
    rules.Rule(
        f"{_manager('self')} == {_manager('oldSelf')}",
        "managedBy cannot change once the job exists: delete the job and apply it again",
    ),
    rules.Rule(
        "!self.hostNetwork || self.network == 'Open'",
        "no network policy reaches pods on the network of their node: with hostNetwork, set network"
        " to Open",
    ),
    rules.Rule(
        f"!self.hostNetwork || !{_ELASTIC} || has(self.tfReplicaSpecs['Worker'].maxReplicas)",
        "with hostNetwork a port is kept for each worker that may come: add Worker.maxReplicas",
    ),
    rules.Rule(
        "self.network == oldSelf.network && self.hostNetwork == oldSelf.hostNetwork",
        "network and hostNetwork cannot change once the job exists: delete the job and apply it"
        " again",
    ),
    rules.Rule(
        f"{_equal('volumeClaimTemplates')}"
        f" && {_equal('persistentVolumeClaimRetentionPolicy.whenDeleted')}",
        "volumeClaimTemplates and persistentVolumeClaimRetentionPolicy cannot change once the job"
        " exists: delete the job and apply it again",
    ),
    rules.Rule(
        f"{_suspended('self')} || ({_SAME_GANG})",
        "scheduling.gang and runPolicy.schedulingPolicy change only while the job is suspended: set"
        " runPolicy.suspend to true with the change, and then to false",
    ),
    *mesh_rules.SPEC_RULES,
)
"""Rules between the fields of `spec`."""

_SAME_REPLICAS = (
    "self.spec.tfReplicaSpecs.all(role, role in oldSelf.value().spec.tfReplicaSpecs"
    " && self.spec.tfReplicaSpecs[role].replicas"
    " == oldSelf.value().spec.tfReplicaSpecs[role].replicas)"
)
"""Whether an update makes no pod name longer."""

JOB_RULES = rules.Rules(
    rules.Rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must begin with a lower-case letter and hold only lower-case letters, digits"
        " and -, because the job's pods and Service carry it",
        spares="true",
    ),
    rules.Rule(
        # The longest pod name is that of a role's last index; 63 characters are a DNS label.
        "self.spec.tfReplicaSpecs.all(role, size(self.metadata.name) + size(role) + 2"
        " + size(string(self.spec.tfReplicaSpecs[role].replicas - 1)) <= 63)",
        "metadata.name is too long: with role and index the names of its pods pass 63 characters;"
        " shorten it",
        spares=_SAME_REPLICAS,
    ),
)
"""Rules at the root, because they need the job's name. Each exempts stored objects."""
