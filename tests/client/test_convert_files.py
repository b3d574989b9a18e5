"""`tfparallel convert` on files: what is refused, lists, and the text that comes out."""

import json
import pathlib

import hypothesis
import pytest
import yaml
from hypothesis import strategies

from testing import invocation
from testing.operator import tfjobs as jobs
from tfparallel.convert import rewrite
from tfparallel_operator.api import load, types
from tfparallel_trainer.contract import documentation

REFUSED: list[tuple[str, jobs.Change, str]] = [
    (
        "another group",
        lambda d: d.update(apiVersion="batch/v1"),
        "apiVersion: received 'batch/v1'; write the roles below spec.tfReplicaSpecs",
    ),
    (
        "unknown role",
        lambda d: jobs.roles(d).update(Worke=jobs.worker(d)),
        "spec.tfReplicaSpecs.Worke: no role of TFJob; the roles are Chief",
    ),
    (
        "a role twice",
        lambda d: jobs.roles(d).update(worker=jobs.worker(d)),
        "spec.tfReplicaSpecs.worker: given twice as Worker; remove one of them",
    ),
    (
        "no container that trains",
        lambda d: jobs.pod(d)["containers"][0].update(name="main"),
        "name the container that trains 'tensorflow'",
    ),
    (
        "two chiefs",
        lambda d: jobs.roles(d)["Chief"].update(replicas=2),
        "a job has one chief",
    ),
    ("no spec", lambda d: d.pop("spec"), "spec: missing"),
    ("a list of roles", lambda d: d["spec"].update(tfReplicaSpecs=[1]), "write fields"),
    ("a role of nothing", lambda d: jobs.roles(d).update(Worker=None), "no template"),
    (
        "words as replicas",
        lambda d: jobs.worker(d).update(replicas="two"),
        "replicas: received 'two'",
    ),
]


@pytest.mark.parametrize(
    ("change", "sentence"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_means_nothing_here_is_refused(change: jobs.Change, sentence: str) -> None:
    result = jobs.run("-", text=yaml.safe_dump(jobs.plain(change)))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sentence in result.stderr
    assert result.stderr.casefold().startswith("error: stdin: tfjob plain: ")


def test_everything_wrong_in_all_files_is_reported_at_once(tmp_path: pathlib.Path) -> None:
    def two_chiefs(document: jobs.Document) -> None:
        jobs.roles(document)["Chief"]["replicas"] = 2

    (tmp_path / "one.yaml").write_text(yaml.safe_dump(jobs.plain(two_chiefs)))
    (tmp_path / "two.yaml").write_text("a: [")
    result = jobs.run(*(str(tmp_path / name) for name in ("one.yaml", "two.yaml", "three.yaml")))
    assert result.exit_code == 2
    assert [line.split(": ")[1].removesuffix(":1") for line in result.stderr.splitlines()] == [
        str(tmp_path / name) for name in ("one.yaml", "two.yaml", "three.yaml")
    ]


def test_files_without_a_tfjob_pass_unless_there_is_none_at_all(tmp_path: pathlib.Path) -> None:
    other = "kind: Service\nspec: {selector: {training.kubeflow.org/job-name: plain}}\n"
    (tmp_path / "job.yaml").write_text(jobs.PLAIN)
    (tmp_path / "service.yaml").write_text(other)
    result = jobs.run(str(tmp_path / "service.yaml"), str(tmp_path / "job.yaml"))
    assert result.stdout.startswith(f"{other}---\n")
    assert "service.yaml: Service without a name\n" in result.stderr
    assert "- labels of pods: spec\n" in result.stderr
    assert "- who may connect to a pod: spec\n" in result.stderr
    result = jobs.run(str(tmp_path / "service.yaml"))
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tmp_path / 'service.yaml'}: expected kind 'TFJob' or 'TrainJob', received"
        " 'Service'; give a file that holds one\n"
    )


@pytest.mark.parametrize("kind", ["List", "TFJobList"])
def test_lists_are_converted_as_json_too(kind: str) -> None:
    listing = {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "items": [jobs.plain(), jobs.plain()],
    }
    result = jobs.run("-", text=json.dumps(listing, indent=2))
    assert result.exit_code == 0, result.stderr
    listing = json.loads(result.stdout)
    assert (listing["apiVersion"], listing["kind"]) == ("v1", "List")
    assert [load.parse_job(item).metadata.name for item in listing["items"]] == ["plain", "plain"]


def test_what_cannot_be_edited_is_written_again() -> None:
    def old(document: jobs.Document) -> None:
        document["status"] = {"a": 1}

    text = "&all " + json.dumps(jobs.plain(old)).replace('"name": "plain"', '? "name"\n: "plain"')
    result = jobs.run("-", text=text)
    assert result.exit_code == 0, result.stderr
    shared = jobs.PLAIN.replace(
        "    Chief:\n      restartPolicy: Never\n", "    Chief: &it\n"
    ).replace(
        "      replicas: 2\n      restartPolicy: Never\n      template:", "      <<: *it\n      x:"
    )
    result = jobs.run("-", text=f"# lost\n{shared}")
    assert result.exit_code == 0, result.stderr
    job = yaml.safe_load(result.stdout)
    assert jobs.worker(job)["restartPolicy"] == "Never"
    assert load.parse_job(job).spec.tf_replica_specs[types.Role.WORKER].template is not None


def test_an_object_that_names_a_pod_has_to_name_another(tmp_path: pathlib.Path) -> None:
    (tmp_path / "all.yaml").write_text(
        f"{jobs.PLAIN}---\nkind: Ingress\nmetadata: {{name: board}}\n"
        "spec: {backend: plain-chief-0}\n"
    )
    result = jobs.run(str(tmp_path / "all.yaml"))
    assert "all.yaml: Ingress board\n" in result.stderr
    assert "- Services: spec (plain-chief-0)\n" in result.stderr


def test_a_job_inside_another_object_is_named(tmp_path: pathlib.Path) -> None:
    trial = {"trialSpec": yaml.safe_load(jobs.PLAIN)}
    experiment = {"kind": "Experiment", "metadata": {"name": "e"}, "spec": {"trialTemplate": trial}}
    (tmp_path / "all.yaml").write_text(f"{jobs.PLAIN}---\n{yaml.safe_dump(experiment)}")
    result = jobs.run(str(tmp_path / "all.yaml"))
    assert (
        "all.yaml: Experiment e holds a TFJob in spec.trialTemplate.trialSpec, which stays as it is"
    ) in result.stderr
    assert list(yaml.safe_load_all(result.stdout))[1] == experiment


def test_a_reference_to_a_job_is_no_job(tmp_path: pathlib.Path) -> None:
    target = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "plain"}
    scaler = {
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "plain", "ownerReferences": [target]},
        "spec": {"scaleTargetRef": target},
    }
    (tmp_path / "all.yaml").write_text(f"{jobs.PLAIN}---\n{yaml.safe_dump(scaler)}")
    assert "holds a TFJob" not in jobs.run(str(tmp_path / "all.yaml")).stderr


def test_jobs_with_the_same_differences_share_a_table() -> None:
    documents = [yaml.safe_load(jobs.PLAIN) for _ in range(2)]
    documents[1]["metadata"]["name"] = "other"
    for document in documents:
        document["status"] = {}
    result = jobs.run("-", text=yaml.safe_dump_all(documents))
    assert result.stderr.count("COSMETIC") == 1
    assert ": TFJob plain\n" in result.stderr
    assert ": TFJob other\n" in result.stderr


def test_the_difference_of_a_file_is_a_unified_diff(tmp_path: pathlib.Path) -> None:
    file, other = tmp_path / "job.yaml", tmp_path / "other.yaml"
    file.write_text(jobs.PLAIN.rstrip("\n"))
    other.write_text("kind: Service\n")
    result = jobs.run("--diff", str(file), str(other))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:2] == [f"--- {file}", f"+++ {file}"]
    lines = result.stdout.splitlines()[3:]
    before = {line[1:] for line in lines if line[0] in " -"}
    assert before <= set(jobs.PLAIN.splitlines())
    assert "-kind: TFJob" in lines
    assert "+kind: TFParallelJob" in lines
    assert "\\ No newline at end of file" in lines
    assert str(other) not in result.stdout


def test_every_line_of_the_report_fits_80_columns(tmp_path: pathlib.Path) -> None:
    def old(document: jobs.Document) -> None:
        document["status"] = {}
        jobs.pod(document)["topologySpreadConstraints"] = [
            {"labelSelector": {"matchLabels": {"tf-job-name": "plain"}}, "maxSkew": 1}
        ]

    result = jobs.run("-", text=yaml.safe_dump(jobs.plain(old)))
    lines = result.stderr.splitlines()
    assert max(map(len, lines)) <= 80
    headings = [line.partition(":")[0] for line in lines if line.partition(":")[0].isupper()]
    assert headings == ["BREAKING", "BEHAVIOR", "COSMETIC"]
    report = " ".join(" ".join(lines).split("Every TFJob also differs by: ")[1].split())
    report, _, following = report.partition(" Next step: ")
    assert following.startswith("spec.trainer trains a model.py without an image")
    assert report.startswith("environment in TF_CONFIG; addresses; ")
    assert report.endswith(f"See {documentation.reference(documentation.Section.EVERY_TFJOB)}.")


@pytest.mark.parametrize("kind", ["TFJob", "TrainJob"])
def test_validate_names_what_makes_a_job_of_it(tmp_path: pathlib.Path, kind: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(jobs.PLAIN.replace("TFJob", kind))
    result = invocation.invoke(["validate", str(file)])
    assert result.exit_code == 2
    assert f"tfparallel convert {file} makes one of it" in result.stderr


_policies = strategies.sampled_from([None, "Never", "Always", "OnFailure", "ExitCode"])


@strategies.composite
def tfjobs(draw: strategies.DrawFn) -> jobs.Document:
    """A TFJob with some of its fields, valid once it is converted."""
    document = jobs.plain()
    spec, roles = document["spec"], jobs.roles(document)
    for role in roles.values():
        role["restartPolicy"] = draw(_policies)
        if draw(strategies.booleans()):
            role.pop("restartPolicy")
    if draw(strategies.booleans()):
        roles["worker"] = roles.pop("Worker")
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


@hypothesis.given(document=tfjobs(), indent=strategies.sampled_from([2, 4]), flow=strategies.data())
def test_the_text_says_what_was_converted(
    document: jobs.Document, indent: int, flow: strategies.DataObject
) -> None:
    style = flow.draw(strategies.sampled_from([False, None, True]))
    unshared = json.loads(json.dumps(document))
    text = yaml.safe_dump(unshared, indent=indent, default_flow_style=style, sort_keys=False)
    converted = jobs.convert(document).document
    rewritten = rewrite.rewrite(f"# kept\n{text}", [converted])
    assert rewritten is not None
    assert rewritten.startswith("# kept\n")
    assert yaml.safe_load(rewritten) == converted
