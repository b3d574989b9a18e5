"""`tfparallel validate`: the line of each problem, over files, documents, folders and input."""

import importlib.util
import pathlib
import textwrap

import pytest

from testing import invocation, paths
from testing.operator import local_jobs as jobs
from tfparallel import submission
from tfparallel.backends.cluster import refusals
from tfparallel_operator.api_server import errors as api_errors

HEAD = """\
apiVersion: tfparallel.dev/v1alpha1
kind: TFParallelJob
metadata:
  name: hello
"""
GOOD = f"{HEAD}spec:\n  trainer: {{epochs: 1}}\n  tfReplicaSpecs:\n    Worker: {{}}\n"


def validate(*arguments: object, text: str | bytes | None = None) -> invocation.Result:
    return invocation.invoke(["validate", *map(str, arguments)], text)


def faults(folder: pathlib.Path, spec: str, head: str = HEAD) -> list[str]:
    """Return what is said of a job; its spec begins in line 5."""
    file = folder / "job.yaml"
    file.write_text(f"{head}spec:\n{textwrap.indent(textwrap.dedent(spec), '  ')}")
    result = validate(file)
    assert result.exit_code == 2
    assert result.stdout == ""
    return [
        line.removeprefix(f"error: {file}:").replace(": ", " ", 1)
        for line in result.stderr.splitlines()
    ]


def test_every_problem_is_named_with_its_line(tmp_path: pathlib.Path) -> None:
    problems = faults(
        tmp_path,
        """\
        stratgy: Mirrored
        epochs: 3
        trainer:
          epochs: "3"
          env:
            - {name: A, value: "1"}
            - name: B
              value: 3
        tfReplicaSpecs:
          worker: {}
        """,
        head=f"# a comment\n{HEAD.rstrip()}\n  labls: {{}}\n",
    )
    assert problems == [
        "6 metadata.labls: unknown field; did you mean 'labels'?",
        "8 spec.stratgy: unknown field; did you mean 'strategy'?",
        "9 spec.epochs: unknown field; epochs belongs below spec.trainer: move it there",
        "11 spec.trainer.epochs: received '3'; write a whole number, without quotes",
        "15 spec.trainer.env[1].value: received 3; put it in quotes",
        "17 spec.tfReplicaSpecs.worker: received 'worker'; input should be 'Chief', 'Master',"
        " 'Worker', 'PS' or 'Evaluator': did you mean 'Worker'?",
    ]


def test_rules_are_checked_though_fields_are_unknown(tmp_path: pathlib.Path) -> None:
    """A rule has the line of the first field that it names."""
    problems = faults(
        tmp_path,
        """\
        colour: red
        trainer: {epochs: 1}
        tfReplicaSpecs:
          Worker: {}
          Chief:
            replicas: 2
        """,
    )
    assert problems == [
        "6 spec.colour: unknown field; remove it or correct its spelling",
        "11 spec.tfReplicaSpecs: a job has one chief: set Chief.replicas to 1",
    ]


def test_rules_and_templates_are_named_at_once(tmp_path: pathlib.Path) -> None:
    problems = faults(
        tmp_path,
        """\
        tfReplicaSpecs:
          Chief:
            replicas: 2
            template: {spec: {containers: [{name: main}]}}
          Worker:
            template:
              spec:
                containers:
                  - name: other
        """,
    )
    assert [line.partition(": ")[0] for line in problems] == [
        "8 spec.tfReplicaSpecs",
        "9 spec.tfReplicaSpecs.Chief.template.spec.containers",
        "13 spec.tfReplicaSpecs.Worker.template.spec.containers",
    ]


def test_a_missing_field_has_the_line_of_its_nearest_parent(tmp_path: pathlib.Path) -> None:
    assert faults(
        tmp_path,
        """\
        trainer:
          epochs: 1
          env:
            - value: "1"
        """,
    ) == [
        "5 spec.tfReplicaSpecs: missing; it is required",
        "9 spec.trainer.env[0].name: missing; it is required",
    ]


def test_the_name_has_the_line_of_the_name(tmp_path: pathlib.Path) -> None:
    spec = "trainer: {epochs: 1}\ntfReplicaSpecs: {Worker: {}}\n"
    [fault] = faults(tmp_path, spec, head=HEAD.replace("hello", "Hello"))
    assert fault.startswith("4 metadata.name must begin with a lower-case letter")


def test_a_field_of_an_anchor_has_the_line_where_it_is_written(tmp_path: pathlib.Path) -> None:
    problems = faults(
        tmp_path,
        """\
        trainer: {epochs: 1}
        tfReplicaSpecs:
          Chief: &replica
            restartPolicy: Nevver
          Worker:
            <<: *replica
            replicas: 2
        """,
    )
    assert [line.partition(": ")[0] for line in problems] == [
        "9 spec.tfReplicaSpecs.Chief.restartPolicy",
        "9 spec.tfReplicaSpecs.Worker.restartPolicy",
    ]
    assert all(line.endswith("did you mean 'Never'?") for line in problems)


def test_an_alias_has_the_problems_of_its_anchor(tmp_path: pathlib.Path) -> None:
    problems = faults(
        tmp_path,
        """\
        trainer: {epochs: 1}
        tfReplicaSpecs:
          Chief: &replica
            colour: red
          Worker: *replica
        """,
    )
    assert [line.partition(": ")[0] for line in problems] == [
        "9 spec.tfReplicaSpecs.Chief.colour",
        "9 spec.tfReplicaSpecs.Worker.colour",
    ]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("[]", "5 spec: received []; write fields"),
        ("{1: 2, tfReplicaSpecs: {Worker: {}}, trainer: {epochs: 1}}", "5 spec[1]: received 1"),
        ("&a {trainer: *a}", "5 spec.trainer.trainer: unknown field"),
        (
            "{trainer: {epochs: 1, env: {a: b}}}",
            "5 spec.trainer.env: write a list, such as [{name: a, value: 'b'}]",
        ),
        (
            "{trainer: {epochs: 1, volumes: {a: b}}}",
            "5 spec.trainer.volumes: write a list, such as [{name: …, mountPath: …}]",
        ),
        (
            "{trainer: {epochs: 1, imagePullSecrets: mine}}",
            "5 spec.trainer.imagePullSecrets: received 'mine'; write a list, such as [",
        ),
        ("{tfReplicaSpecs: [Worker]}", "5 spec.tfReplicaSpecs: received ['Worker']; write fields"),
    ],
)
def test_values_of_another_shape_have_a_sentence(
    tmp_path: pathlib.Path, spec: str, sentence: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"{HEAD}spec: {spec}\n")
    result = validate(file)
    assert result.exit_code == 2
    assert f"error: {file}:{sentence.replace(' ', ': ', 1)}" in result.stderr


def test_a_field_that_appears_twice_is_refused(tmp_path: pathlib.Path) -> None:
    spec = """\
    trainer: {epochs: 1}
    tfReplicaSpecs:
      Worker:
        replicas: 1
        replicas: 2
    """
    assert faults(tmp_path, spec) == [
        "10 spec.tfReplicaSpecs.Worker.replicas: appears twice, first in line 9; remove one of them"
    ]


@pytest.mark.parametrize(
    ("text", "line"), [("a: [", 1), ("a: 1\nb: [1\nc: 2\n", 3), ("a:\n\tb: 1\n", 2)]
)
def test_what_is_not_yaml_is_refused_with_its_line(
    tmp_path: pathlib.Path, text: str, line: int
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    result = validate(file)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {file}:{line}: not YAML: while ")


def test_each_job_of_a_file_is_checked(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "jobs.yaml"
    wrong = GOOD.replace("epochs: 1", "epochs: 0").replace("hello", "wrong")
    others = "kind: ConfigMap\nmetadata: {name: code}\n"
    last = GOOD.replace("hello", "last")
    file.write_text(f"---\n{GOOD}---\n{others}---\n---\n{wrong}---\n{last}")
    result = validate(file)
    assert result.exit_code == 2
    assert result.stdout == f"{file}:2: hello: valid\n{file}:24: last: valid\n"
    assert result.stderr == (
        f"error: {file}:20: spec.trainer.epochs: received 0; input should be greater than or equal"
        " to 1\n"
    )


LIST = """\
apiVersion: v1
kind: List
items:
  - kind: ConfigMap
    metadata: {name: code}
  - apiVersion: tfparallel.dev/v1alpha1
    kind: TFParallelJob
    metadata: {name: hello}
    spec:
      trainer: {epochs: 0}
      tfReplicaSpecs: {Worker: {}}
"""


@pytest.mark.parametrize("verb", ["validate", "run", "submit"])
def test_a_job_of_a_list_is_checked(tmp_path: pathlib.Path, verb: str) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(LIST)
    result = invocation.invoke([verb, str(file)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {file}:10: spec.trainer.epochs: received 0; ")


def test_the_module_next_to_the_file_is_checked_too(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, module = tmp_path / "job.yaml", tmp_path / "model.py"
    file.write_text(GOOD)
    module.write_text("def build_model(): return (\n")
    result = validate(file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {module}:1: received 'def build_model(): return ('; S")
    module.write_text("def build_model(): ...\n")
    result = validate(file)
    assert result.exit_code == 2
    assert f"error: {module}: the function training_data is missing" in result.stderr
    monkeypatch.chdir(tmp_path)
    assert "error: model.py: the function" in validate("job.yaml").stderr
    assert validate("-", text=GOOD).exit_code == 0
    file.write_text(GOOD.replace("{}", f"{{template: {{spec: {{containers: [{IMAGE}]}}}}}}"))
    assert (validate(file).exit_code, validate(file).stderr) == (0, "")  # another Python's module


IMAGE = "{name: tensorflow, image: mine}"


def test_a_package_that_is_missing_here_is_a_warning(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image of the replicas may have it, and a machine that only sends jobs has none."""
    file, module = tmp_path / "job.yaml", tmp_path / "model.py"
    file.write_text(GOOD)
    module.write_text(f"import kears\n{jobs.MODULE}")
    result = validate(file)
    assert (result.exit_code, result.stdout) == (0, f"{file}: valid\n")
    assert result.stderr.startswith(
        f"warning: {module}:1: imports 'kears', and this Python has no package 'kears'"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert validate(file).stderr == ""


def test_a_list_may_hold_several_jobs_and_brings_its_objects(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "jobs.yaml"
    valid = LIST.replace("epochs: 0", "epochs: 1")
    file.write_text(valid)
    prepared = submission.read(file)
    assert prepared.name == "hello"
    assert [item["kind"] for item in prepared.companions] == ["ConfigMap"]
    file.write_text(valid + valid.partition("items:\n")[2].replace("hello", "last"))
    assert validate(file).stdout == f"{file}:6: hello: valid\n{file}:14: last: valid\n"


def test_a_folder_is_checked_for_the_jobs_that_it_holds(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "claim.yml").write_text("kind: PersistentVolumeClaim\n")
    (tmp_path / "model.py").write_text(jobs.MODULE)
    (tmp_path / "below").mkdir()
    (tmp_path / "below/b.yaml").write_text("a: [")
    result = validate(tmp_path)
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'a.yaml'}: valid\n")
    (tmp_path / "a.yaml").unlink()
    result = validate(tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path}: no file of this folder holds a TFParallel")


def test_the_examples_are_valid() -> None:
    folders = {file.parent for file in paths.EXAMPLES.glob("*/job.yaml")}
    assert folders
    assert validate(*folders).exit_code == 0


def test_the_standard_input_is_checked(tmp_path: pathlib.Path) -> None:
    assert validate("-", text=GOOD).stdout == "stdin: valid\n"
    result = validate("-", tmp_path / "no.yaml", text=GOOD.replace("epochs: 1", "epochs: 0"))
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert first.startswith("error: stdin:6: spec.trainer.epochs: received 0")
    assert second.startswith(f"error: {tmp_path / 'no.yaml'}: no such file")
    assert "stdin: not UTF-8 text" in validate("-", text=b"\xff").stderr


def test_what_the_api_server_refuses_is_reported_by_field() -> None:
    """The words of an API server of version 1.34."""
    body = {
        "message": 'TFParallelJob.tfparallel.dev "hello" is invalid: [...]',
        "reason": "Invalid",
        "details": {
            "causes": [
                {
                    "reason": "FieldValueInvalid",
                    "message": 'Invalid value: "object": a job has one chief',
                    "field": "spec.tfReplicaSpecs",
                },
                {
                    "reason": "FieldValueInvalid",
                    "message": "Invalid value: 0: should be greater than or equal to 1",
                    "field": "spec.trainer.env[0].value",
                },
                {"reason": "FieldValueInvalid", "message": "too long", "field": "<nil>"},
            ]
        },
    }
    error = api_errors.from_answer(422, body)
    assert isinstance(error, api_errors.Invalid)
    assert [str(problem) for problem in refusals.problems_of(error)] == [
        "spec.tfReplicaSpecs: a job has one chief",
        "spec.trainer.env[0].value: Invalid value: 0: should be greater than or equal to 1",
        "too long",
    ]


def test_a_policy_refuses_the_job_and_a_missing_right_the_question() -> None:
    policy = api_errors.from_answer(403, {"message": "admission webhook denied the request: no"})
    right = 'User "me" cannot create resource "tfparalleljobs" in API group "tfparallel.dev"'
    assert not refusals.lacks_right(policy)
    assert refusals.lacks_right(api_errors.from_answer(403, {"message": right}))
    [problem] = refusals.problems_of(policy)
    assert (problem.location, str(problem)) == ((), "admission webhook denied the request: no")


def test_fields_that_the_api_server_does_not_know_are_reported_one_by_one() -> None:
    message = 'strict decoding error: unknown field "spec.colour", unknown field "spec.trainer.x"'
    problems = refusals.problems_of(api_errors.Invalid(message))
    assert [problem.location for problem in problems] == [
        ("spec", "colour"),
        ("spec", "trainer", "x"),
    ]


@pytest.mark.parametrize("verb", ["run", "submit", "plan", "compare"])
def test_verbs_that_need_one_job_name_the_line_of_each_field(
    tmp_path: pathlib.Path, verb: str
) -> None:
    """A field of --set has no line: its value is not in the file."""
    file = tmp_path / "job.yaml"
    file.write_text(f"kind: ConfigMap\n---\n{GOOD}  colour: red\n")
    arguments = [verb, str(file), "--set", "spec.trainer.epochs=0"]
    result = invocation.invoke(arguments)
    assert result.exit_code == 2
    unknown, epochs = result.stderr.splitlines()
    assert unknown.startswith(f"error: {file}:11: spec.colour: unknown field; ")
    assert epochs.startswith("error: spec.trainer.epochs: received 0; ")


def test_what_no_process_can_be_started_for_has_its_line(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "job.yaml"
    container = "{name: tensorflow, command: [python], env: [{name: A, valueFrom: {fieldRef: {}}}]}"
    file.write_text(
        f"{HEAD}spec:\n  tfReplicaSpecs:\n    Worker:\n"
        f"      template: {{spec: {{containers: [{container}]}}}}\n"
    )
    result = invocation.invoke(["run", str(file)])
    assert result.stderr.startswith(f"error: {file}:8: spec.tfReplicaSpecs.Worker.template: env A")
