"""The network of a job: the Service that names its pods, and the policy that isolates them."""

from tfparallel_operator.api import names, types
from tfparallel_operator.core import decision
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.pods import config, ownership


def service(layout: Layout) -> decision.Manifest:
    """Build the job's headless Service.

    Its names resolve before pods are ready, as servers need it.

    The operator creates it before the pods, because a scheduler spreads the pods of a Service over
    the nodes.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": ownership.metadata(layout.job, layout.service_name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": ownership.labels(layout.job),
            "ports": [{"name": names.PORT_NAME, "port": names.DEFAULT_PORT}],
        },
    }


def policy(job: types.TFParallelJob) -> decision.Manifest:
    """Build the NetworkPolicy: pods accept connections only from pods of the same job.

    It allows all ports, because NCCL uses any free port. It does not restrict outgoing connections,
    because data, images and the progress endpoint may be anywhere.
    """
    pods = {"podSelector": {"matchLabels": ownership.labels(job)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": ownership.metadata(job, config.name(job.metadata.name)),
        "spec": {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]},
    }
