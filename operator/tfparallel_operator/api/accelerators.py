"""Accelerators among a container's resources, by the names that Kubernetes knows them by.

Device plugins name a resource DOMAIN/KIND. A class of dynamic resource allocation has a name of the
administrator's choice, or deviceclass.resource.kubernetes.io/CLASS (Kubernetes 1.36).
"""

from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import quantities

_KINDS = ("gpu", "gpu.shared", "gaudi", "i915", "xe")
"""Of NVIDIA, AMD and device classes; shared GPUs of NVIDIA; of Habana; two of Intel."""

_MIG = "mig-"
_CLASSES = "deviceclass.resource.kubernetes.io"

_MOST = 1024
"""Maximum number of devices of a node; a larger number is a mistake."""


def count(amounts: Mapping[str, Any]) -> int:
    """Count the accelerators, and parts of one, in the limits of a container."""
    return sum(_number(amount) for name, amount in amounts.items() if _is_accelerator(name))


def count_gpus(amounts: Mapping[str, Any]) -> int:
    """Count the whole GPUs among them, each of which is a device of TensorFlow."""
    return sum(_number(amount) for name, amount in amounts.items() if name.endswith("/gpu"))


def _is_accelerator(name: str) -> bool:
    domain, _, kind = name.rpartition("/")
    return bool(domain) and (kind in _KINDS or kind.startswith(_MIG) or domain == _CLASSES)


def _number(amount: Any) -> int:
    """Return the value of a quantity; 0: it is absent."""
    number = quantities.parse(str(amount))
    return 0 if number is None else max(0, min(int(number), _MOST))
