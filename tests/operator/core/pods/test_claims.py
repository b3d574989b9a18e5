"""The claims that a job's templates ask for."""

from typing import Any

from testing.operator import builders
from tfparallel_operator.core import layout
from tfparallel_operator.core.pods import claims

TEMPLATE = {
    "metadata": {"name": "data", "labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "10Gi"}},
    },
}


def spec(**more: Any) -> dict[str, Any]:
    checkpoint = {"claim": "data"}
    volumes = [
        {"name": "images", "mountPath": "/images", "claim": "data"},
        {"name": "old", "mountPath": "/old", "claim": "older"},
    ]
    trainer = {"epochs": 1, "checkpoint": checkpoint, "volumes": volumes}
    return {"volumeClaimTemplates": [TEMPLATE], "trainer": trainer, **more}


def test_a_claim_is_named_and_labelled_by_its_job_and_outlives_it() -> None:
    [claim] = claims.manifests(builders.a_job(trainer=True, spec=spec(), worker=1))
    assert claim == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "job-data",
            "namespace": "ns",
            "labels": {
                "team": "a",
                "app.kubernetes.io/managed-by": "tfparallel-operator",
                "tfparallel.dev/job-name": "job",
            },
            "annotations": {"note": "b"},
        },
        "spec": TEMPLATE["spec"],
    }


def test_a_claim_that_is_deleted_with_its_job_belongs_to_it() -> None:
    policy = {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}
    [claim] = claims.manifests(builders.a_job(trainer=True, spec=spec(**policy), worker=1))
    [owner] = claim["metadata"]["ownerReferences"]
    assert owner["uid"] == "job-uid"


def test_fields_name_a_claim_by_its_template() -> None:
    job = builders.a_job(trainer=True, spec=spec(), worker=1)
    [replica] = layout.build(job).all_replicas
    pod = builders.a_pod(job, replica)
    mounted = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert mounted == {"tfparallel-output": "job-data", "images": "job-data", "old": "older"}


def test_a_claim_is_created_before_the_pods_of_each_attempt() -> None:
    world = builders.World(builders.a_job(trainer=True, spec=spec(), worker=1))
    world.run_until_quiet()
    assert world.claims == ["job-data"]
    for _ in range(2):
        created = [created["kind"] for created in world.manifests]
        assert created.index("PersistentVolumeClaim") < created.index("Pod")
        world.manifests.clear()
        world.run()
        world.exit("job-worker-0", 1).run_until_quiet()


def test_a_job_that_runs_asks_for_nothing() -> None:
    world = builders.World(builders.a_job(trainer=True, spec=spec(), worker=1))
    world.run_until_quiet()
    world.run().run_until_quiet()
    assert world.decide().creations == ()
