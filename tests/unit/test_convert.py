"""`tfparallel convert`: a TFJob means the same afterwards, and what does not is told."""

import copy
import difflib
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import yaml
from click import testing
from hypothesis import strategies

from tfparallel_operator.api import load, names, types
from tfparallel_operator.cli import app
from tfparallel_operator.cli.convert import differences, rewrite, template, tfjob
from tfparallel_operator.cli.convert.differences import Difference

ROOT = pathlib.Path(__file__).parents[2]
SHAPES = sorted((pathlib.Path(__file__).parent / "tfjobs").glob("*.yaml"))

Document = dict[str, Any]
Change = Callable[[Document], object]

PLAIN = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: plain
spec:
  runPolicy:
    cleanPodPolicy: None
  tfReplicaSpecs:
    Chief:
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: tensorflow
              image: example/plain:1
    Worker:
      replicas: 2
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: tensorflow
              image: example/plain:1
"""


def plain(change: Change = lambda _: None) -> Document:
    document: Document = yaml.safe_load(PLAIN)
    change(document)
    return document


def policy(document: Document) -> Document:
    found: Document = document["spec"]["runPolicy"]
    return found


def roles(document: Document) -> Document:
    found: Document = document["spec"]["tfReplicaSpecs"]
    return found


def worker(document: Document) -> Document:
    found: Document = roles(document)["Worker"]
    return found


def pod(document: Document) -> Document:
    found: Document = worker(document)["template"]["spec"]
    return found


def convert(document: Document, *, write_defaults: bool = True) -> tfjob.Converted:
    return tfjob.convert(document, write_defaults=write_defaults)


def found(converted: tfjob.Converted) -> set[Difference]:
    return {notice.difference for notice in converted.notices}


def run(*arguments: str, given: str = "") -> testing.Result:
    return testing.CliRunner().invoke(app.tfparallel, ["convert", *arguments], input=given)


def test_a_job_that_says_everything_changes_by_its_two_lines_alone() -> None:
    result = run("-", given=PLAIN)
    assert (result.exit_code, result.stderr) == (0, "")
    changed = [
        line
        for line in difflib.ndiff(PLAIN.splitlines(), result.stdout.splitlines())
        if line[0] in "+-"
    ]
    assert changed == [
        "- apiVersion: kubeflow.org/v1",
        "- kind: TFJob",
        "+ apiVersion: tfparallel.dev/v1alpha1",
        "+ kind: TFParallelJob",
    ]


@pytest.mark.parametrize("file", SHAPES, ids=lambda file: file.stem)
def test_every_shape_is_converted_with_its_comments_and_order(file: pathlib.Path) -> None:
    result = run(str(file))
    assert result.exit_code == 0, result.stderr
    assert "written anew" not in result.stderr
    before, after = file.read_text().splitlines(), result.stdout.splitlines()
    comments = [line for line in before if line.lstrip().startswith("#")]
    assert [line for line in after if line.lstrip().startswith("#")] == comments
    documents = load.parse_documents(result.stdout, "converted")
    jobs = [one for document in documents for one in document.get("items", [document])]
    assert any(load.parse_job(job).spec for job in jobs if job["kind"] == names.KIND)
    assert "kubeflow.org" not in result.stdout


CASES: list[tuple[Difference, Change]] = [
    (Difference.RESTART_POLICY, lambda d: worker(d).pop("restartPolicy")),
    (Difference.RESTART_POLICY, lambda d: worker(d).update(restartPolicy=None)),
    (Difference.CLEAN_POD_POLICY, lambda d: d["spec"].pop("runPolicy")),
    (Difference.BACKOFF_LIMIT, lambda d: worker(d).update(restartPolicy="ExitCode")),
    (Difference.COUNTED, lambda d: policy(d).update(backoffLimit=2)),
    (Difference.TOGETHER, lambda d: worker(d).update(restartPolicy="OnFailure")),
    (Difference.ALWAYS, lambda d: worker(d).update(restartPolicy="Always")),
    *(
        (difference, lambda d: roles(d).update(Evaluator=worker(d) | {"replicas": 1}))
        for difference in (
            Difference.EVALUATOR_FAILS,
            Difference.EVALUATOR_GRACE,
            Difference.EVALUATOR_ADDRESS,
        )
    ),
    (Difference.MASTER, lambda d: roles(d).update(Master=roles(d).pop("Chief"))),
    (Difference.SERVERS, lambda d: roles(d).update(PS=roles(d).pop("Chief"))),
    (Difference.ONE_REPLICA, lambda d: roles(d).pop("Worker")),
    (
        Difference.GIVEN_TF_CONFIG,
        lambda d: pod(d)["containers"][0].update(env=[{"name": "TF_CONFIG", "value": "{}"}]),
    ),
    (Difference.HOSTNAME, lambda d: pod(d).update(hostname="me", subdomain="here")),
    (
        Difference.LABELS,
        lambda d: pod(d).update(
            topologySpreadConstraints=[
                {"labelSelector": {"matchLabels": {"tf-job-name": "plain"}}, "maxSkew": 1}
            ]
        ),
    ),
    (
        Difference.LABELS,
        lambda d: pod(d).update(nodeSelector={"training.kubeflow.org/job-role": "master"}),
    ),
    (Difference.DEADLINE, lambda d: policy(d).update(activeDeadlineSeconds=60)),
    (Difference.SCHEDULING_POLICY, lambda d: policy(d).update(schedulingPolicy={"queue": "a"})),
    (
        Difference.POD_GROUP,
        lambda d: worker(d)["template"].update(
            metadata={"annotations": {"scheduling.k8s.io/group-name": "plain"}}
        ),
    ),
    (Difference.MANAGED_BY, lambda d: policy(d).update(managedBy="kubeflow.org/training-operator")),
    (
        Difference.QUEUE,
        lambda d: d["metadata"].update(labels={"kueue.x-k8s.io/queue-name": "research"}),
    ),
    (Difference.ROLE_KEYS, lambda d: roles(d).update(WORKER=roles(d).pop("Worker"))),
    (Difference.NO_REPLICAS, lambda d: worker(d).update(replicas=0)),
    (Difference.CLEAN_WORD, lambda d: policy(d).update(cleanPodPolicy="running")),
    (Difference.SUCCESS_WORD, lambda d: d["spec"].update(successPolicy="allworkers")),
    (Difference.MISPLACED, lambda d: d["spec"].update(cleanPodPolicy="All", runPolicy=None)),
    (Difference.UNKNOWN, lambda d: d["spec"].update(tfRpcLayer="grpc")),
    (Difference.UNKNOWN, lambda d: policy(d).update(cleanPodDelay="5m")),
    (Difference.UNKNOWN, lambda d: worker(d).update(tfPort=2222)),
    (Difference.UNKNOWN, lambda d: d.update(extra=1)),
    (Difference.EXPORTED, lambda d: d["metadata"].update(uid="1", generation=3)),
    (Difference.EXPORTED, lambda d: d.update(status={"conditions": []})),
]


@pytest.mark.parametrize(
    ("difference", "change"), CASES, ids=[f"{n}-{case[0].name}" for n, case in enumerate(CASES)]
)
def test_what_is_different_is_told_and_the_job_is_valid(
    difference: Difference, change: Change
) -> None:
    assert not convert(plain()).notices
    given = plain(change)
    kept = copy.deepcopy(given)
    converted = convert(given)
    assert difference in found(converted)
    assert given == kept
    assert load.parse_job(converted.document).metadata.name == "plain"


def test_every_difference_that_depends_on_the_job_is_tried() -> None:
    tried = {case[0] for case in CASES}
    assert tried == {one for one in Difference if not one.value.everywhere}


def test_a_scheduling_policy_is_kept_with_what_it_says() -> None:
    known = {"minAvailable": 2, "minResources": {"cpu": 4, "nvidia.com/gpu": "8"}}
    given = {**known, "queue": "", "priorityClass": None, "other": 1}
    converted = convert(plain(lambda d: policy(d).update(schedulingPolicy=given)))
    assert converted.document["spec"]["runPolicy"]["schedulingPolicy"] == known
    assert {Difference.SCHEDULING_POLICY, Difference.UNKNOWN} <= found(converted)


def test_another_manager_is_kept() -> None:
    given = plain(lambda d: policy(d).update(managedBy="kueue.x-k8s.io/multikueue"))
    assert convert(given).document["spec"]["runPolicy"]["managedBy"] == "kueue.x-k8s.io/multikueue"


def test_the_defaults_of_tfjob_are_written() -> None:
    def bare(document: Document) -> None:
        del document["spec"]["runPolicy"]
        del worker(document)["restartPolicy"], worker(document)["replicas"]
        roles(document)["Chief"]["restartPolicy"] = "OnFailure"

    spec = load.parse_job(convert(plain(bare)).document).spec
    assert spec.run_policy.clean_pod_policy is types.CleanPodPolicy.NONE
    assert spec.run_policy.backoff_limit == tfjob.UNLIMITED
    assert spec.tf_replica_specs[types.Role.WORKER].restart_policy is types.RestartPolicy.NEVER
    assert spec.tf_replica_specs[types.Role.WORKER].replicas == 1
    made = convert(plain(bare), write_defaults=False).document
    assert "runPolicy" not in made["spec"]
    assert "restartPolicy" not in worker(made)


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1", "v1alpha2"])
def test_an_absent_clean_pod_policy_means_what_it_meant_in_that_version(version: str) -> None:
    def old(document: Document) -> None:
        document["apiVersion"] = f"kubeflow.org/{version}"
        del document["spec"]["runPolicy"]

    assert policy(convert(plain(old)).document) == {"cleanPodPolicy": "Running"}


def test_given_fields_are_kept_as_they_are() -> None:
    def full(document: Document) -> None:
        policy(document).update(
            cleanPodPolicy="All", ttlSecondsAfterFinished=0, backoffLimit=0, suspend=True
        )
        policy(document)["managedBy"] = "kueue.x-k8s.io/multikueue"
        document["spec"].update(successPolicy="AllWorkers", enableDynamicWorker=True)
        worker(document).update(restartPolicy="ExitCode")
        pod(document)["containers"][0]["ports"] = [{"name": "tfjob-port", "containerPort": 3333}]

    given = plain(full)
    assert convert(given).document["spec"] == given["spec"]


def test_a_tf_config_that_tfjob_leaves_alone_stays() -> None:
    def alone(document: Document) -> None:
        del roles(document)["Chief"]
        worker(document)["replicas"] = 1
        pod(document)["containers"][0]["env"] = [{"name": "TF_CONFIG", "value": "{}"}]

    made = convert(plain(alone)).document
    assert pod(made)["containers"][0]["env"] == [{"name": "TF_CONFIG", "value": "{}"}]


def test_other_variables_and_containers_keep_theirs() -> None:
    mine = {"name": "TF_CONFIG", "value": "{}"}

    def more(document: Document) -> None:
        containers = pod(document)["containers"]
        containers[0]["env"] = [mine, {"name": "A", "value": "1"}]
        containers.append({"name": "sidecar", "image": "x", "env": [mine]})

    first, second = pod(convert(plain(more)).document)["containers"]
    assert first["env"] == [{"name": "A", "value": "1"}]
    assert second["env"] == [mine]


def test_a_name_that_the_api_server_makes_is_no_obstacle() -> None:
    def generated(document: Document) -> None:
        document["metadata"] = {"generateName": "plain-"}

    assert convert(plain(generated)).document["metadata"] == {"generateName": "plain-"}


REFUSED: list[tuple[str, Change, str]] = [
    (
        "first version",
        lambda d: d.update(apiVersion="kubeflow.org/v1alpha1", spec={"replicaSpecs": []}),
        "apiVersion: received 'kubeflow.org/v1alpha1'; only kubeflow.org/v1,",
    ),
    (
        "older than that",
        lambda d: d.update(apiVersion="mlkube.io/v1beta1", kind="TfJob"),
        "apiVersion: received 'mlkube.io/v1beta1'",
    ),
    (
        "unknown role",
        lambda d: roles(d).update(Worke=worker(d)),
        "spec.tfReplicaSpecs.Worke: no role of TFJob; the roles are Chief",
    ),
    (
        "a role twice",
        lambda d: roles(d).update(worker=worker(d)),
        "spec.tfReplicaSpecs.worker: given twice as Worker; remove one of them",
    ),
    (
        "no container that trains",
        lambda d: pod(d)["containers"][0].update(name="main"),
        "name the container that trains 'tensorflow'",
    ),
    ("two chiefs", lambda d: roles(d)["Chief"].update(replicas=2), "a job has one chief"),
    ("no spec", lambda d: d.pop("spec"), "spec: missing"),
    ("a list of roles", lambda d: d["spec"].update(tfReplicaSpecs=[1]), "write fields"),
    ("a role of nothing", lambda d: roles(d).update(Worker=None), "no template"),
    ("words as replicas", lambda d: worker(d).update(replicas="two"), "replicas: received 'two'"),
]


@pytest.mark.parametrize(
    ("change", "sentence"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_means_nothing_here_is_refused(change: Change, sentence: str) -> None:
    result = run("-", given=yaml.safe_dump(plain(change)))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sentence in result.stderr
    assert result.stderr.casefold().startswith("error: standard input: tfjob plain: ")


def test_everything_wrong_in_all_files_is_told_at_once(tmp_path: pathlib.Path) -> None:
    def two_chiefs(document: Document) -> None:
        roles(document)["Chief"]["replicas"] = 2

    (tmp_path / "one.yaml").write_text(yaml.safe_dump(plain(two_chiefs)))
    (tmp_path / "two.yaml").write_text("a: [")
    result = run(*(str(tmp_path / name) for name in ("one.yaml", "two.yaml", "three.yaml")))
    assert result.exit_code == 2
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == [
        str(tmp_path / name) for name in ("one.yaml", "two.yaml", "three.yaml")
    ]


def test_files_without_a_tfjob_pass_unless_there_is_none_at_all(tmp_path: pathlib.Path) -> None:
    other = "kind: Service\nspec: {selector: {training.kubeflow.org/job-name: plain}}\n"
    (tmp_path / "job.yaml").write_text(PLAIN)
    (tmp_path / "service.yaml").write_text(other)
    result = run(str(tmp_path / "service.yaml"), str(tmp_path / "job.yaml"))
    assert result.stdout.startswith(f"{other}---\n")
    assert "Service without a name: names labels of TFJob's pods" in result.stderr
    result = run(str(tmp_path / "service.yaml"))
    assert result.exit_code == 2
    assert result.stderr == "error: expected kind 'TFJob', received 'Service'\n"


@pytest.mark.parametrize("kind", ["List", "TFJobList"])
def test_lists_are_converted_as_json_too(kind: str) -> None:
    listing = {"apiVersion": "kubeflow.org/v1", "kind": kind, "items": [plain(), plain()]}
    result = run("-", given=json.dumps(listing, indent=2))
    assert result.exit_code == 0, result.stderr
    made = json.loads(result.stdout)
    assert (made["apiVersion"], made["kind"]) == ("v1", "List")
    assert [load.parse_job(item).metadata.name for item in made["items"]] == ["plain", "plain"]


def test_what_cannot_be_edited_is_written_anew() -> None:
    def old(document: Document) -> None:
        document["status"] = {"a": 1}

    text = "&all " + json.dumps(plain(old)).replace('"name": "plain"', '? "name"\n: "plain"')
    result = run("-", given=text)
    assert result.exit_code == 0, result.stderr
    shared = PLAIN.replace("    Chief:\n      restartPolicy: Never\n", "    Chief: &it\n").replace(
        "      replicas: 2\n      restartPolicy: Never\n      template:", "      <<: *it\n      x:"
    )
    result = run("-", given=f"# lost\n{shared}")
    assert result.exit_code == 0, result.stderr
    made = yaml.safe_load(result.stdout)
    assert worker(made)["restartPolicy"] == "Never"
    assert load.parse_job(made).spec.tf_replica_specs[types.Role.WORKER].template is not None


def test_run_tells_what_makes_a_job_of_a_tfjob(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(PLAIN)
    result = testing.CliRunner().invoke(app.tfparallel, ["validate", str(file)])
    assert result.exit_code == 2
    assert f"tfparallel convert {file} makes one of it" in result.stderr


def test_the_page_shows_every_difference() -> None:
    page = (ROOT / "docs/tfjob.md").read_text()
    assert differences.table() in page


def test_the_example_of_the_page_is_what_convert_makes() -> None:
    page = (ROOT / "docs/tfjob.md").read_text()
    before, after = page.split("<!-- convert -->\n")[1:3]
    given = before.split("```yaml\n")[1].split("```")[0]
    wanted = after.split("```yaml\n")[1].split("```")[0]
    result = run("-", given=given)
    assert result.stdout == wanted
    told = after.split("```console\n")[1].split("```")[0]
    notices = result.stderr.replace("standard input", "mnist.yaml")
    assert told == f"$ tfparallel convert mnist.yaml > job.yaml\n{notices}"


def test_the_labels_of_the_page_are_those_that_are_renamed() -> None:
    page = (ROOT / "docs/tfjob.md").read_text()
    for old, new in template.LABELS.items():
        if old.startswith(template.OLD_PREFIX):
            assert f"| `{old}` | `{new}` |" in page


_words = strategies.sampled_from([None, "Never", "Always", "OnFailure", "ExitCode"])


@strategies.composite
def tfjobs(draw: strategies.DrawFn) -> Document:
    """A TFJob with some of its fields, valid once it is converted."""
    document = plain()
    spec, found_roles = document["spec"], roles(document)
    for role in found_roles.values():
        role["restartPolicy"] = draw(_words)
        if draw(strategies.booleans()):
            role.pop("restartPolicy")
    if draw(strategies.booleans()):
        found_roles["worker"] = found_roles.pop("Worker")
    spec["runPolicy"] = draw(
        strategies.fixed_dictionaries(
            {},
            optional={
                "backoffLimit": strategies.integers(0, 9),
                "suspend": strategies.booleans(),
                "schedulingPolicy": strategies.just({"queue": "q"}),
                "other": strategies.lists(strategies.integers(), max_size=2),
            },
        )
    )
    if draw(strategies.booleans()):
        spec["ttlSecondsAfterFinished"] = draw(strategies.integers(0, 99))
    if draw(strategies.booleans()):
        document["status"] = {"conditions": draw(strategies.lists(strategies.just({"a": 1})))}
    return document


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(document=tfjobs(), indent=strategies.sampled_from([2, 4]), flow=strategies.data())
def test_the_text_says_what_was_converted(
    document: Document, indent: int, flow: strategies.DataObject
) -> None:
    style = flow.draw(strategies.sampled_from([False, None, True]))
    unshared = json.loads(json.dumps(document))
    text = yaml.safe_dump(unshared, indent=indent, default_flow_style=style, sort_keys=False)
    wanted = convert(document).document
    made = rewrite.rewrite(f"# kept\n{text}", [wanted])
    assert made is not None
    assert made.startswith("# kept\n")
    assert yaml.safe_load(made) == wanted


def test_the_metrics_that_stand_for_those_of_tfjob_exist() -> None:
    page = (ROOT / "docs/tfjob.md").read_text()
    told = set(re.findall(r"`(tfparallel_[a-z_]+)", page))
    assert told == {"tfparallel_jobs_started_total", "tfparallel_jobs_ended_total"} | {
        "tfparallel_job_restarts_total"
    }
    listed = (ROOT / "docs/metrics.md").read_text()
    assert all(f"| `{name}` |" in listed for name in told)


def test_every_option_of_convert_is_listed() -> None:
    page = (ROOT / "docs/tfjob.md").read_text()
    for option in app.convert.params:
        for choice in getattr(option.type, "choices", ()):
            assert f"| `{option.opts[0]} {choice}` |" in page
