"""The faults that a command line names, and those that a job cannot have."""

from collections.abc import Mapping
from typing import Any

import pytest

from tfparallel.rehearse import faults
from tfparallel_operator.api import load

REPLICAS = {"chief-0", "worker-0", "worker-1"}


def test_faults_are_in_the_order_of_their_steps() -> None:
    scenario = faults.parse_scenario(
        ["worker-1@40", "worker-0@9"],
        ["chief@12"],
        full_disks=[20],
        cuts=["chief:worker-1@10"],
    )
    assert list(map(str, scenario.faults)) == [
        "kill worker-0@9",
        "cut chief-0:worker-1@10",
        "freeze chief-0@12",
        "disk-full 20",
        "kill worker-1@40",
    ]


def test_a_slowdown_has_a_factor() -> None:
    scenario = faults.parse_scenario(["worker-1@40"], slowdowns=["worker-2x2.5"])
    assert list(map(str, scenario.slowdowns)) == ["slow worker-2x2.5"]


@pytest.mark.parametrize("text", ["worker-1", "worker-1@", "worker-1@0", "@4", "worker-1@x", ""])
def test_a_fault_without_replica_or_step_is_refused(text: str) -> None:
    with pytest.raises(load.SpecError, match="write REPLICA@STEP, such as worker-1@40") as refused:
        faults.parse_scenario(kills=[text])
    assert str(refused.value).startswith(f"--kill {text}: ")


@pytest.mark.parametrize(
    "text", ["worker-1@4", "worker-0:worker-1", "worker-0:@4", "a:b:c@4", "worker-0:worker-1@0"]
)
def test_a_cut_without_two_replicas_or_a_step_is_refused(text: str) -> None:
    with pytest.raises(load.SpecError, match="write REPLICA:REPLICA@STEP, such as") as refused:
        faults.parse_scenario(cuts=[text])
    assert str(refused.value).startswith(f"--cut {text}: ")


def test_a_replica_is_not_cut_off_from_itself() -> None:
    with pytest.raises(
        load.SpecError, match="--cut worker:worker-0@4: names worker-0 twice; name two replicas"
    ):
        faults.parse_scenario(cuts=["worker:worker-0@4"])


@pytest.mark.parametrize("text", ["worker-1", "worker-1x", "worker-1x1", "worker-1x0.5", "x3"])
def test_a_slowdown_without_a_factor_above_one_is_refused(text: str) -> None:
    with pytest.raises(load.SpecError, match="write REPLICAxFACTOR with a factor above 1"):
        faults.parse_scenario(slowdowns=[text])


def test_a_rehearsal_needs_a_fault() -> None:
    with pytest.raises(
        load.SpecError, match="no fault: give --kill, --freeze, --cut, --disk-full or --slow"
    ):
        faults.parse_scenario()


@pytest.mark.parametrize(
    ("options", "slowdowns"),
    [
        ({"kills": ["worker-1@4"]}, []),
        ({}, ["worker-1x3"]),
        ({"full_disks": [4]}, []),
        ({"cuts": ["worker-0:worker-1@4"]}, []),
    ],
)
def test_a_slow_replica_has_no_other_fault(
    options: Mapping[str, Any], slowdowns: list[str]
) -> None:
    with pytest.raises(load.SpecError, match="--slow worker-1x2: the replica has another fault"):
        faults.parse_scenario(**options, slowdowns=["worker-1x2", *slowdowns])


def test_faults_that_the_job_can_have_are_accepted() -> None:
    scenario = faults.parse_scenario(
        ["worker-1@40"], ["chief-0@41"], ["worker-2x3"], cuts=["chief:worker-0@7"]
    )
    faults.check_replicas(scenario, {*REPLICAS, "worker-2"})
    faults.check_steps(scenario, 42)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("kill worker-2@4", {"kills": ["worker-2@4"]}),
        ("slow worker-2x3", {"slowdowns": ["worker-2x3"]}),
        ("cut worker-1:worker-2@4", {"cuts": ["worker-1:worker-2@4"]}),
    ],
)
def test_a_fault_of_an_unknown_replica_is_refused(option: str, values: Mapping[str, Any]) -> None:
    scenario = faults.parse_scenario(**values)
    with pytest.raises(
        load.SpecError,
        match=f"--{option}: the job has no replica 'worker-2': it has chief-0, worker-0, worker-1",
    ):
        faults.check_replicas(scenario, REPLICAS)


@pytest.mark.parametrize(
    ("replicas", "sentence"),
    [
        (
            {"chief-0"},
            "the job has one replica, chief-0; leave out --cut, or give the job more, such as --set"
            " spec.tfReplicaSpecs.Worker.replicas=2",
        ),
        (
            {"chief-0", "evaluator-0"},
            "evaluator-0 has no connection to others, because it reads checkpoints; name two"
            " replicas that train",
        ),
    ],
)
def test_a_cut_between_replicas_without_a_connection_is_refused(
    replicas: set[str], sentence: str
) -> None:
    scenario = faults.parse_scenario(cuts=["chief:evaluator@4"])
    with pytest.raises(load.SpecError) as refused:
        faults.check_replicas(scenario, replicas)
    assert str(refused.value) == f"--cut chief-0:evaluator-0@4: {sentence}"


def test_a_fault_after_the_last_step_is_refused() -> None:
    scenario = faults.parse_scenario(freezes=["worker-1@40"])
    with pytest.raises(load.SpecError, match="--freeze worker-1@40: the job ends with step 40"):
        faults.check_steps(scenario, 40)
