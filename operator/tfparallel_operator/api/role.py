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

    # Enums hash in Python, and a decision hashes roles by thousands.
    __hash__ = str.__hash__

    @property
    def task_type(self) -> str:
        """The role's name in TF_CONFIG: TensorFlow 2 knows no master, it is the chief."""
        return "chief" if self is Role.MASTER else self.value.lower()

    @property
    def label(self) -> str:
        """The role's name in labels and in the names of pods."""
        return self.value.lower()
