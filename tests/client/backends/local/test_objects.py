"""What a run takes from ConfigMaps and Secrets of the job's file, and from its environment."""

import base64
import pathlib
from typing import Any

import pytest

from testing import sources
from testing.operator import local_jobs as jobs
from testing.operator import objects
from tfparallel.backends.local import container_variables, local_run
from tfparallel.job_source import source
from tfparallel_operator.api import load, names

TOKEN = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "store", "key": "token"}}}


def secret(**data: str) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"kind": "Secret", "metadata": {"name": "store"}, "data": encoded}


def printing(line: str, **trainer: Any) -> dict[str, Any]:
    """A job whose chief runs a line of shell instead of the trainer."""
    return jobs.job({"Chief": jobs.shell(line)}, trainer={"epochs": 1, **trainer})


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "model.py").write_text(jobs.MODULE)
    return tmp_path


async def lines(folder: pathlib.Path, *documents: Any) -> list[str]:
    outcome, recorder = await jobs.finish(folder, *documents)
    assert outcome.job.status.state is names.State.SUCCEEDED
    return recorder.lines_of("chief-0")


@pytest.mark.usefixtures("processes")
async def test_values_come_from_secrets_of_the_file(folder: pathlib.Path) -> None:
    prefixed = [{"prefix": "S_", "secretRef": {"name": "store"}}]
    document = printing("echo $TOKEN $S_token $S_user", env=[TOKEN], envFrom=prefixed)
    assert await lines(folder, document, secret(token="t", user="u")) == ["t t u"]


@pytest.mark.usefixtures("processes")
async def test_a_run_keeps_its_results_below_no_namespace(folder: pathlib.Path) -> None:
    document = printing("echo [$TFPARALLEL_JOB_NAMESPACE]", checkpoint={"uri": "s3://bucket/runs"})
    assert await lines(folder, document) == ["[]"]


@pytest.mark.usefixtures("processes")
async def test_values_come_from_the_environment_of_the_run(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "mine")
    assert await lines(folder, printing("echo $TOKEN", env=[TOKEN])) == ["mine"]


@pytest.mark.usefixtures("processes")
async def test_variables_of_the_run_win_in_every_process(folder: pathlib.Path) -> None:
    joined = {"name": "JOINED", "value": "$(TOKEN)/$(MODE)/$(NEW)"}
    env = [TOKEN, {"name": "MODE", "value": "slow"}, joined]
    document = printing("echo $JOINED $MODE $NEW", env=env)
    document["spec"]["tfReplicaSpecs"]["Worker"] = document["spec"]["tfReplicaSpecs"]["Chief"]
    file = jobs.write(folder, document)
    environment = {"TOKEN": "mine", "MODE": "fast", "NEW": "1"}
    recorder = jobs.RecordingWatcher()
    await local_run.run(source.read(file, environment=environment), folder / "out", recorder)
    assert set(recorder.lines) <= {(name, "mine/fast/1 fast 1") for name in ("chief-0", "worker-0")}
    assert recorder.lines_of("chief-0") == ["mine/fast/1 fast 1"]


def test_variables_come_from_options_files_and_the_environment(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "variables"
    file.write_text("# Keys\n\nTOKEN=from the file\n  URL=http://x/?a=b # c\nUSER\nEMPTY=\n")
    assignments = ["TOKEN=from an option", "HOME"]
    assert container_variables.parse_overrides(
        assignments, [file], {"USER": "me", "HOME": "/me"}
    ) == {
        "TOKEN": "from an option",
        "URL": "http://x/?a=b # c",
        "USER": "me",
        "EMPTY": "",
        "HOME": "/me",
    }


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("1=2", "received the name '1'; write NAME=VALUE"),
        ("=2", "received the name ''; write NAME=VALUE"),
        ("TF_CONFIG=x", "the operator sets TF_CONFIG; remove it"),
        ("TOKEN", "TOKEN is not set here; write TOKEN=VALUE, or set it"),
    ],
)
def test_a_variable_that_cannot_be_set_is_named_with_its_place(
    tmp_path: pathlib.Path, assignment: str, problem: str
) -> None:
    file = tmp_path / "variables"
    file.write_text(f"A=1\n{assignment}\n")
    with pytest.raises(load.SpecError) as caught:
        container_variables.parse_overrides([assignment], [file], {})
    name = assignment.partition("=")[0]
    assert caught.value.problems == (
        f"--env-file {file}:2: {problem}",
        f"--env {name}: {problem}",
    )


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), (b"\xff", "not UTF-8")])
def test_a_file_of_variables_that_cannot_be_read_is_named(
    tmp_path: pathlib.Path, content: bytes | None, reason: str
) -> None:
    file = tmp_path / "variables"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(load.SpecError, match=f"--env-file {file}: {reason}.*; give a file"):
        container_variables.parse_overrides([], [file], {})


@pytest.mark.usefixtures("processes")
async def test_what_is_optional_may_be_absent(folder: pathlib.Path) -> None:
    optional = {"name": "store", "optional": True}
    variable = {"name": "A", "valueFrom": {"configMapKeyRef": {**optional, "key": "a"}}}
    document = printing("echo A$A", env=[variable], envFrom=[{"configMapRef": optional}])
    assert await lines(folder, document) == ["A"]


@pytest.mark.parametrize(
    ("trainer", "sentence"),
    [
        (
            {"env": [TOKEN]},
            "spec.trainer: env TOKEN: valueFrom is key 'token' of Secret 'store', which is not in"
            " the job's file; pass the value by --env TOKEN=VALUE or --env-file",
        ),
        (
            {"envFrom": [{"secretRef": {"name": "store"}}]},
            "spec.trainer: envFrom: Secret 'store' is not in the job's file; add it there",
        ),
        (
            {"volumes": [{"name": "key", "mountPath": "/key", "secret": "store"}]},
            "spec.trainer: Secret 'store' is not in the job's file; add it there",
        ),
    ],
)
async def test_what_is_nowhere_is_named_before_anything_starts(
    trainer: Any, sentence: str, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    document = jobs.job({"Chief": {}}, trainer={"epochs": 1, **trainer})
    job_source = source.read(jobs.write(folder, document))
    with pytest.raises(load.SpecError) as caught:
        await local_run.run(job_source, folder / "out", jobs.RecordingWatcher())
    assert caught.value.problems[0].startswith(sentence)


@pytest.mark.usefixtures("processes")
async def test_volumes_are_folders_and_secrets_files(folder: pathlib.Path) -> None:
    volumes = [
        {"name": "images", "mountPath": "/images", "claim": "data"},
        {"name": "key", "mountPath": "/key", "secret": "store"},
    ]
    document = printing("cat /key/token; echo seen > /images/file", volumes=volumes)
    document["spec"]["volumeClaimTemplates"] = [objects.claim_template()]
    assert await lines(folder, document, secret(token="t\n")) == ["t"]
    assert (folder / "out/claims/job-data/file").read_text() == "seen\n"
    assert (folder / "out/secrets/store/token").stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("processes")
async def test_an_archive_of_the_file_is_the_folder_of_the_source(tmp_path: pathlib.Path) -> None:
    files = {"model.py": "", "data/labels.txt": "one\n"}
    archive, maps = sources.in_config_maps("code", files)
    line = "cat data/labels.txt; cat $TFPARALLEL_SOURCE_DIR/data/labels.txt"
    document = printing(line, source={**archive, "requirements": "requirements.txt"})
    assert await lines(tmp_path, document, *maps) == ["one", "one"]
    notes = source.read(jobs.write(tmp_path, document, *maps)).notes
    assert notes == (
        "spec.trainer.source.requirements: requirements.txt is not installed here; the replicas"
        " use the packages of this Python",
    )


@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        ([1], "spec.trainer.source.archive.configMaps: received 'code-0'; no ConfigMap of the job"),
        ([0, 0], "spec.trainer.source.archive.configMaps: received 'code-1'"),
    ],
)
def test_an_archive_that_is_not_in_the_file_is_refused_with_a_remedy(
    left: list[int], sentence: str, tmp_path: pathlib.Path
) -> None:
    archive, maps = sources.in_config_maps("code", {"model.py": ""})
    file = jobs.write(tmp_path, printing("true", source=archive), *(maps[name] for name in left))
    with pytest.raises(load.SpecError) as caught:
        source.read(file)
    assert caught.value.problems[0].startswith(sentence)
    assert "remove source" in caught.value.problems[0]


@pytest.mark.usefixtures("processes")
async def test_some_keys_of_a_secret_are_files_of_other_names(tmp_path: pathlib.Path) -> None:
    selected = {"secretName": "store", "items": [{"key": "token", "path": "deep/key"}]}
    template = jobs.template(
        jobs.shell("cd /key && find . -type f"),
        volumeMounts=[{"name": "key", "mountPath": "/key"}],
        pod_spec={"volumes": [{"name": "key", "secret": selected}]},
    )
    document = jobs.job({"Chief": {"template": template}})
    assert await lines(tmp_path, document, secret(token="t", user="u")) == ["./deep/key"]


def test_chunks_in_another_order_are_refused(tmp_path: pathlib.Path) -> None:
    archive, maps = sources.in_config_maps("code", {"model.py": ""})
    archive["archive"]["configMaps"].reverse()
    with pytest.raises(load.SpecError, match=r"spec\.trainer\.source\.archive: sha256 is"):
        source.read(jobs.write(tmp_path, printing("true", source=archive), *maps))


def test_a_module_that_the_archive_does_not_have_is_named(tmp_path: pathlib.Path) -> None:
    archive, maps = sources.in_config_maps("code", {"other.py": ""})
    with pytest.raises(load.SpecError, match=r"received 'model\.py'; no such file in ConfigMap"):
        source.read(jobs.write(tmp_path, printing("true", source=archive), *maps))
