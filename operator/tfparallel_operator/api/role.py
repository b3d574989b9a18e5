"""The roles of replicas."""

import enum


class Role(enum.StrEnum):
    """Keys of `tfReplicaSpecs`."""

    # In the order in which the replicas of a job are listed.
    CHIEF = "Chief"
    MASTER = "Master"
    WORKER = "Worker"
    PS = "PS"
    EVALUATOR = "Evaluator"

    # An enum's own hash is computed in Python, and a decision hashes thousands of roles.
    __hash__ = str.__hash__

    @property
    def task_type(self) -> str:
        """The role's name in TF_CONFIG. A master is a chief, because TensorFlow 2 has no master."""
        return "chief" if self is Role.MASTER else self.value.lower()

    @property
    def label(self) -> str:
        """The role's name in labels and in the names of pods."""
        return self.value.lower()
