"""Finds this process's TPU from the environment. Pure, without TensorFlow."""

import pathlib
from collections.abc import Mapping

from tfparallel_trainer import errors

LOCAL = "local"
"""TensorFlow's name of a TPU that is a device of this machine."""

_ENDPOINTS = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"
_NAME = "TPU_NAME"
_HOSTS = "TPU_WORKER_HOSTNAMES"
_DEVICES = ("accel[0-9]*", "vfio/[0-9]*")


def find(env: Mapping[str, str], devices: pathlib.Path = pathlib.Path("/dev")) -> str:
    """The TPU's name, as `TPUClusterResolver` takes it, if a process can drive the TPU."""
    if name := env.get(_ENDPOINTS) or env.get(_NAME):
        return name
    if not any(any(devices.glob(pattern)) for pattern in _DEVICES):
        raise errors.BadConfigurationError(
            f"strategy is 'TPU', and no TPU is here: neither ${_ENDPOINTS} nor ${_NAME} is set, "
            f"and {devices} has no accel* or vfio/*. Run it where a TPU is, or set strategy to "
            "MultiWorkerMirrored."
        )
    hosts = [host for host in env.get(_HOSTS, "").split(",") if host]
    if len(hosts) > 1:
        raise errors.BadConfigurationError(
            f"${_HOSTS} names {len(hosts)} hosts of one TPU, and a process drives the TPU of its "
            f"own host. Set ${_NAME} to the hosts' addresses (grpc://host:8470,…), or use a slice "
            "of one host."
        )
    return LOCAL


def addresses(name: str) -> list[str]:
    """The addresses (host:port) in a name; empty for other names."""
    if not name.startswith("grpc://"):
        return []
    parts = [part.removeprefix("grpc://") for part in name.split(",")]
    return [part if ":" in part else f"{part}:8470" for part in parts]
