"""Variables that use each other, as the kubelet fills them in."""

import dataclasses
import time
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import load, types
from tfparallel_operator.core import installation, replicas
from tfparallel_operator.core.pods import expansion

Json = dict[str, Any]

WORKER = replicas.Replica(types.Role.WORKER, 0)
ARCHIVE = {"archive": {"configMaps": ["code-0"], "sha256": "0" * 64}}


def kubelet(variables: list[Json]) -> dict[str, str]:
    """Return the values that the kubelet starts a container with: each filled in from those before
    it, and the last of one name."""
    values: dict[str, str] = {}
    for variable in variables:
        values[variable["name"]] = expansion.expand(variable.get("value", "-"), values)
    return values


def pairs(**values: str) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


def a_pod(
    *,
    template: list[Json] | None = None,
    env: list[Json] | None = None,
    defaults: list[Json] | None = None,
    trainer: Json | None = None,
    share_above: int | None = 64,
) -> Json:
    """Return the spec of a pod whose variables come from all hands."""
    document = builders.manifest(trainer=True, worker=2)
    document["spec"]["trainer"] |= {"env": env or [], **(trainer or {})}
    container = {"name": "tensorflow", "env": template or []}
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"] = {"spec": {"containers": [container]}}
    settings: installation.InstallationSettings = dataclasses.replace(
        builders.SETTINGS,
        pod_defaults={"spec": {"containers": [{"name": "tensorflow", "env": defaults or []}]}},
        share_above=share_above,
    )
    spec: Json = builders.a_pod(load.parse_job(document), WORKER, settings, attempt=2)["spec"]
    return spec


def values(**hands: Any) -> dict[str, str]:
    return kubelet(a_pod(**hands)["containers"][0]["env"])


@pytest.mark.parametrize("hand", ["template", "env", "defaults"])
@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("/data/run-$(TFPARALLEL_ATTEMPT)", "/data/run-2"),
        ("$(TFPARALLEL_JOB_UID)", "job-uid"),
        ("$(TFPARALLEL_OUTPUT_DIR)/logs", "/output/job/logs"),
        ("$(TFPARALLEL_JOB_FILE)", "/etc/tfparallel/job/job.json"),
        ("$$(TFPARALLEL_ATTEMPT)", "$(TFPARALLEL_ATTEMPT)"),
        ("$(NOBODY)", "$(NOBODY)"),
    ],
)
def test_a_variable_is_made_of_the_operators(hand: str, value: str, filled: str) -> None:
    assert values(**{hand: pairs(MADE=value)})["MADE"] == filled


@pytest.mark.parametrize("share_above", [None, 0])
def test_a_variable_is_made_of_the_cluster(share_above: int | None) -> None:
    environment = values(template=pairs(MADE="is $(TF_CONFIG)"), share_above=share_above)
    assert environment["MADE"] == f"is {environment['TF_CONFIG']}"
    assert '"index":0' in environment["MADE"]


@pytest.mark.parametrize("base", ["template", "env", "defaults"])
@pytest.mark.parametrize("derived", ["template", "env", "defaults"])
def test_a_variable_of_one_hand_is_made_of_one_of_another(base: str, derived: str) -> None:
    hands: dict[str, list[Json]] = {base: pairs(BASE="b")}
    hands[derived] = [*hands.get(derived, []), *pairs(MADE="$(BASE)/m")]
    assert values(**hands)["MADE"] == "b/m"


@pytest.mark.parametrize("hand", ["template", "env"])
def test_a_job_that_sets_a_default_leaves_what_is_made_of_it(hand: str) -> None:
    defaults = pairs(TEAM="none", CACHE="/cache/$(TEAM)")
    environment = values(defaults=defaults, **{hand: pairs(ROOM="7", TEAM="vision-$(ROOM)")})
    assert environment["CACHE"] == "/cache/vision-7"


def test_arguments_are_made_of_variables_that_are_made_of_others() -> None:
    environment = values(template=pairs(FOLDER="/runs/$(NAME)-$(TFPARALLEL_ATTEMPT)", NAME="a"))
    assert expansion.expand("--to=$(FOLDER)", environment) == "--to=/runs/a-2"


def test_the_init_container_fills_in_what_the_trainer_does() -> None:
    value = "/cache/$(TFPARALLEL_JOB_UID)/$(TEAM)$(TFPARALLEL_OUTPUT_DIR)$(TFPARALLEL_SOURCE_DIR)"
    source = {**ARCHIVE, "requirements": "requirements.txt"}
    pod = a_pod(
        env=pairs(PIP_CACHE_DIR=value), template=pairs(TEAM="t"), trainer={"source": source}
    )
    [fetching], [trains] = pod["initContainers"], pod["containers"]
    expected = "/cache/job-uid/t/output/job/workspace/source"
    assert kubelet(fetching["env"])["PIP_CACHE_DIR"] == expected
    assert kubelet(trains["env"])["PIP_CACHE_DIR"] == expected


def test_sidecars_and_defaults_of_them_agree_too() -> None:
    document = builders.manifest(worker=1)
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    template["containers"].append({"name": "log", "image": "l", "env": pairs(TEAM="vision")})
    default = {"name": "log", "env": pairs(TEAM="none", CACHE="/cache/$(TEAM)")}
    settings = dataclasses.replace(
        builders.SETTINGS, pod_defaults={"spec": {"containers": [default]}}
    )
    pod = builders.a_pod(load.parse_job(document), WORKER, settings)["spec"]
    [log] = [container for container in pod["containers"] if container["name"] == "log"]
    assert kubelet(log["env"])["CACHE"] == "/cache/vision"


def test_an_init_container_says_why_it_ends_where_the_template_says() -> None:
    document = builders.manifest(trainer=True, worker=1)
    document["spec"]["trainer"] |= {"source": ARCHIVE}
    container = {"name": "tensorflow", "terminationMessagePath": "/tmp/why"}
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"] = {"spec": {"containers": [container]}}
    [fetching] = builders.a_pod(load.parse_job(document), WORKER)["spec"]["initContainers"]
    assert fetching["terminationMessagePath"] == "/tmp/why"
    assert kubelet(fetching["env"])["TFPARALLEL_FAILURE_FILE"] == "/tmp/why"


def test_what_stands_in_order_already_stays() -> None:
    variables = [*pairs(B="1", A="$(B)"), *pairs(B="$(A)$(B)"), *pairs(C="$(B)")]
    assert expansion.order(variables) == variables


def test_variables_in_a_circle_stay() -> None:
    variables = pairs(A="$(B)", B="$(C)", C="$(A)", SELF="$(SELF)")
    assert sorted(variable["name"] for variable in expansion.order(variables)) == [
        "A",
        "B",
        "C",
        "SELF",
    ]


def test_long_chains_and_values_without_an_end_cost_little() -> None:
    chain = [{"name": f"V{n}", "value": f"$(V{n + 1})"} for n in range(20_000)]
    began = time.process_time()
    ordered = expansion.order([*chain, {"name": "OPEN", "value": "$(" * 100_000}])
    expansion.expand("$(" * 100_000, {})
    assert time.process_time() - began < 10
    assert ordered[0]["name"] == "V19999"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("$(NAME)", "value"),
        ("--a=$(NAME)/$(NAME)", "--a=value/value"),
        ("$(OTHER)", "$(OTHER)"),
        ("$$(NAME)", "$(NAME)"),
        ("$$$(NAME)$$", "$value$"),
        ("$NAME ${NAME}", "$NAME ${NAME}"),
        ("$(NAME", "$(NAME"),
        ("$(NAME) $(NAME $$", "value $(NAME $"),
        ("cost: 5$", "cost: 5$"),
    ],
)
def test_variables_are_filled_in_as_kubernetes_does(template: str, expected: str) -> None:
    assert expansion.expand(template, {"NAME": "value"}) == expected
