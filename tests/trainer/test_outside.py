"""The trainer's edges: settings, the user's module, exit codes, progress, documentation."""

import json
import os
import pathlib
import re
import time
import urllib.request

import pytest

from testing import waiting
from testing.trainer import launch, report_receiver
from testing.trainer import runs as trainings
from tfparallel.backends.local import ports
from tfparallel_trainer import __main__, errors, process_settings, user
from tfparallel_trainer.contract import environment, exits, job_file
from tfparallel_trainer.contract import progress as protocol
from tfparallel_trainer.lifecycle import termination
from tfparallel_trainer.loop import preflight
from tfparallel_trainer.reporting import progress_pusher

pytestmark = pytest.mark.usefixtures("runs")

JOB = {"name": "j", "strategy": "Mirrored", "trainer": {"epochs": 1}}


def environment_of(tmp_path: pathlib.Path, job: object = JOB, **more: str) -> dict[str, str]:
    path = tmp_path / "job.json"
    path.write_text(job if isinstance(job, str) else json.dumps(job))
    return {
        environment.JOB_FILE: str(path),
        environment.SOURCE_DIR: str(tmp_path),
        environment.OUTPUT_DIR: str(tmp_path / "output"),
        **more,
    }


def test_settings_are_read(tmp_path: pathlib.Path) -> None:
    settings_of_job = process_settings.read(
        environment_of(
            tmp_path, TFPARALLEL_ATTEMPT="4", TFPARALLEL_PROGRESS_URL="http://localhost:1"
        )
    )
    assert not settings_of_job.same_dropout
    assert (
        settings_of_job.attempt,
        settings_of_job.cpu_devices,
        settings_of_job.cluster.alone,
    ) == (4, 1, True)
    assert settings_of_job.progress is not None
    assert settings_of_job.progress.token_file is None
    other = process_settings.read(environment_of(tmp_path, {**JOB, "name": "k"}))
    assert other.digest != settings_of_job.digest


SHARED = {"worker": ["a:1", "b:2", "c:3"], "evaluator": ["e:4"]}


@pytest.mark.parametrize(
    ("role", "workers", "addresses"),
    [
        ("worker", None, {"worker": ["a:1", "b:2", "c:3"]}),
        ("worker", "2", {"worker": ["a:1", "b:2"]}),
        ("evaluator", "2", {"evaluator": ["e:4"]}),
    ],
)
def test_the_replicas_of_a_large_job_share_a_file(
    tmp_path: pathlib.Path, role: str, workers: str | None, addresses: dict[str, list[str]]
) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(SHARED))
    env = environment_of(tmp_path, TF_CONFIG=json.dumps({"task": {"type": role, "index": 0}}))
    env[environment.CLUSTER_FILE] = str(file)
    if workers is not None:
        env[environment.WORKERS] = workers
    cluster = process_settings.read(env).cluster
    assert cluster.addresses() == addresses
    assert cluster.task.name == f"{role}-0"
    whole = {"cluster": {"worker": ["own:1"]}, "task": {"type": "worker", "index": 0}}
    assert process_settings.tf_config(
        {**env, environment.TF_CONFIG: json.dumps(whole)}
    ) == json.dumps(whole)


@pytest.mark.parametrize("content", [None, "[", '["a:1"]', '{"worker": 1}'])
def test_a_shared_file_that_is_no_cluster_is_refused(
    tmp_path: pathlib.Path, content: str | None
) -> None:
    file = tmp_path / "cluster.json"
    if content is not None:
        file.write_text(content)
    env = environment_of(tmp_path, TF_CONFIG='{"task": {"type": "worker", "index": 0}}')
    with pytest.raises(errors.BadConfigurationError, match="TFPARALLEL_CLUSTER_FILE"):
        process_settings.read({**env, environment.CLUSTER_FILE: str(file)})


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({environment.JOB_FILE: ""}, "TFPARALLEL_JOB_FILE is not set"),
        ({environment.JOB_FILE: "/nowhere"}, "/nowhere, which cannot be read"),
        ({environment.ATTEMPT: "0"}, "TFPARALLEL_ATTEMPT is '0'"),
        ({environment.TF_CONFIG: "["}, "TF_CONFIG is"),
        (
            {environment.OUTPUT_DIR: "gs://b/run"},
            "TFPARALLEL_OUTPUT_DIR is 'gs://b/run', an address",
        ),
        ({environment.STEP_LOG: "yes"}, "TFPARALLEL_STEP_LOG is 'yes': give 1, or 0 for not"),
        ({environment.GRACE_SECONDS: "1m"}, "TFPARALLEL_GRACE_SECONDS is '1m': give whole seconds"),
    ],
)
def test_wrong_settings_are_refused(
    tmp_path: pathlib.Path, change: dict[str, str], pattern: str
) -> None:
    with pytest.raises(errors.BadConfigurationError, match=re.escape(pattern)):
        process_settings.read({**environment_of(tmp_path), **change})


def test_wrong_job_files_name_the_field(tmp_path: pathlib.Path) -> None:
    job = {**JOB, "trainer": {"epochs": 1, "globalBatchSize": 0}}
    with pytest.raises(errors.BadConfigurationError, match=r"trainer\.globalBatchSize: Input"):
        process_settings.read(environment_of(tmp_path, job))
    with pytest.raises(errors.BadConfigurationError, match="give either epochs or steps"):
        process_settings.read(environment_of(tmp_path, {**JOB, "trainer": {}}))


def test_strategies_that_do_not_fit_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.BadConfigurationError, match="strategy is 'ParameterServer'"):
        preflight.check(
            process_settings.read(environment_of(tmp_path, {**JOB, "strategy": "ParameterServer"}))
        )
    compiled = {"epochs": 1, "jitCompile": "On"}
    job = {**JOB, "strategy": "ModelSplit", "mesh": {"data": 2}, "trainer": compiled}
    with pytest.raises(errors.BadConfigurationError, match="'ModelSplit' does not use XLA: remove"):
        preflight.check(process_settings.read(environment_of(tmp_path, job)))
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    with pytest.raises(errors.BadConfigurationError, match="for one process, and TF_CONFIG has 2"):
        preflight.check(
            process_settings.read(environment_of(tmp_path, TF_CONFIG=json.dumps(cluster)))
        )


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        (None, "has no such file"),
        ("def build_model(:", "importing it raised SyntaxError"),
        ("import nothing_like_this", "raised ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        ("def build_model(): pass", "training_data is missing"),
        ("build_model = 3", "build_model is not a function"),
    ],
)
def test_wrong_modules_are_refused(tmp_path: pathlib.Path, text: str | None, pattern: str) -> None:
    if text is not None:
        (tmp_path / "model.py").write_text(text)
    with pytest.raises(errors.TrainerError, match=pattern):
        user.load(tmp_path, "model.py")


def test_a_failing_import_shows_the_users_lines_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("import nothing_like_this")
    with pytest.raises(errors.UserCodeError) as caught:
        user.load(tmp_path, "model.py")
    first, second = caught.value.trace.splitlines()
    assert first.endswith('model.py", line 1, in <module>')
    assert second.strip() == "import nothing_like_this"


def test_reports_are_as_often_as_the_environment_says(tmp_path: pathlib.Path) -> None:
    where = {environment.PROGRESS_URL: "http://localhost:1"}
    for written, seconds in (("0.1", 0.1), ("2", 2.0)):
        read = process_settings.read(
            environment_of(tmp_path, **where, **{environment.PROGRESS_SECONDS: written})
        )
        assert read.progress is not None
        assert read.progress.interval_seconds == seconds
    for wrong in ("0", "-1", "inf", "nan", "soon"):
        with pytest.raises(errors.BadConfigurationError, match=r"give seconds, such as 0\.1"):
            process_settings.read(
                environment_of(tmp_path, **where, **{environment.PROGRESS_SECONDS: wrong})
            )


def test_data_functions_may_take_the_context_or_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text(
        "import helper\n"
        "def build_model(): return helper.VALUE\n"
        "def training_data(): return 1\n"
        "def evaluation_data(context): return context.epoch\n"
    )
    (tmp_path / "helper.py").write_text("VALUE = 7\n")
    module = user.load(tmp_path, "model.py")
    context = user.Context(
        seed=0, epoch=5, global_batch_size=1, source_dir=tmp_path, output_dir=tmp_path
    )
    assert module.build_model() == 7
    assert module.call_with("training_data", context) == 1
    assert module.has("evaluation_data")
    assert module.call_with("evaluation_data", context) == 5


def run(tmp_path: pathlib.Path, text: str, processes: int = 1, **trainer: object) -> launch.Ended:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.py").write_text(text)
    spec = {"epochs": 1, **trainer}
    environments = launch.environments(tmp_path, source, spec, processes=processes)
    with trainings.Runs(tmp_path).group(environments[:1]) as group:
        (ended,) = group.wait()
    return ended


MODEL = """
import keras, numpy
def build_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
def compile_model(model):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
def training_data():
    return numpy.zeros((8, 2)), numpy.full((8,), LABEL)
"""


def test_an_error_of_the_user_shows_the_users_lines(tmp_path: pathlib.Path) -> None:
    text = "def build_model():\n    return deeper()\ndef deeper():\n    raise KeyError('why')\n"
    ended = run(
        tmp_path,
        text + "import numpy\ndef training_data(): return numpy.zeros(2), numpy.zeros(2)\n",
    )
    assert ended.code == exits.Exit.USER_ERROR
    ended_with = ended.errors[ended.errors.index("  File") :]
    assert "tfparallel_trainer" not in ended_with
    assert "in deeper" in ended_with
    assert ended_with.rstrip().endswith("build_model raised KeyError: 'why'")


def test_an_error_of_a_callback_shows_the_users_lines(tmp_path: pathlib.Path) -> None:
    text = MODEL.replace("LABEL", "0") + (
        "class Failing(keras.callbacks.Callback):\n"
        "    def on_epoch_end(self, epoch, logs=None):\n"
        "        raise KeyError('val_loss')\n"
        "def callbacks():\n    return [Failing()]\n"
    )
    ended = run(tmp_path, text)
    assert ended.code == exits.Exit.USER_ERROR, ended
    assert "in on_epoch_end" in ended.errors
    assert ended.errors.rstrip().endswith(
        "on_epoch_end of the callback Failing raised KeyError: 'val_loss'"
    )


def test_the_sentence_of_an_error_is_left_in_a_file(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    failure = tmp_path / "failure"
    environments = launch.environments(
        tmp_path, tmp_path, {"epochs": 1}, more={environment.FAILURE_FILE: str(failure)}
    )
    with runs.group(environments) as group:
        (ended,) = group.wait()
    assert ended.code == exits.Exit.BAD_CONFIGURATION, ended
    assert failure.read_text().startswith("trainer.module is 'model.py', but")


def test_labels_outside_the_classes_are_the_users_error(tmp_path: pathlib.Path) -> None:
    ended = run(tmp_path, MODEL.replace("LABEL", "9"))
    assert ended.code == exits.Exit.USER_ERROR, ended
    assert "labels within the classes" in ended.errors


def test_a_batch_smaller_than_the_ranks_waits_for_nobody(tmp_path: pathlib.Path) -> None:
    ended = run(tmp_path, MODEL, processes=3, globalBatchSize=2)
    assert ended.code == exits.Exit.BAD_CONFIGURATION, ended
    assert "trainer.globalBatchSize is 2, less than the 3 ranks" in ended.errors


def test_tensorflow_at_import_is_reported(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    text = "import tensorflow as tf\nX = tf.zeros(3)\n" + MODEL
    environments = launch.environments(tmp_path, tmp_path, {"epochs": 1}, processes=2)
    (tmp_path / "model.py").write_text(text)
    with runs.group(environments) as group:
        ended = group.wait()
    assert [process.code for process in ended] == [exits.Exit.USER_ERROR] * 2, ended
    assert "model.py:2: The module runs a TensorFlow operation while it is imported" in (
        ended[0].errors
    )


def test_an_unknown_failure_is_a_bug_of_the_trainer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "check", lambda _: 1 / 0)
    assert __main__.attempt(environment_of(tmp_path), 0.0) is exits.Exit.INTERNAL_ERROR
    assert "ZeroDivisionError" in capsys.readouterr().err


def report(step: int) -> protocol.Report:
    return protocol.Report(step=step, metrics={"loss": "0.5"})


def test_progress_is_throttled_and_the_last_report_is_sent(tmp_path: pathlib.Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with report_receiver.receiving() as server:
        pusher = progress_pusher.Pusher(
            process_settings.ProgressTarget(server.url, token, None, 60), print
        )
        pusher.put(report(1))
        waiting.until(lambda: server.got, "the first report")
        token.write_text("second\n")
        for step in range(2, 6):
            pusher.put(report(step))
        pusher.close(60)
        assert [(who, body["step"]) for who, body in server.got] == [
            ("Bearer first", 1),
            ("Bearer second", 5),
        ]
        assert server.got[0][1] == {"step": 1, "epoch": 0, "metrics": {"loss": "0.5"}}


def test_progress_that_nobody_accepts_is_reported_once_and_harms_nothing() -> None:
    messages: list[str] = []
    (port,) = ports.allocate(1)
    target = process_settings.ProgressTarget(f"http://127.0.0.1:{port}/", None, None, 0.01)
    pusher = progress_pusher.Pusher(target, messages.append)
    for step in range(5):
        pusher.put(report(step))
        time.sleep(0.05)
    pusher.close()
    assert len(messages) == 1
    assert "progress is not reported for now" in messages[0]


@pytest.mark.parametrize(("answers", "tries"), [([503, 429], 3), ([403], 1)])
def test_a_last_report_that_is_not_taken_is_sent_again_unless_it_is_refused(
    answers: list[int], tries: int
) -> None:
    with report_receiver.receiving() as server:
        server.answers = answers
        pusher = progress_pusher.Pusher(
            process_settings.ProgressTarget(server.url, None, None, 60), print
        )
        pusher.put(report(7))
        pusher.close(60)
        assert [body["step"] for _, body in server.got] == [7] * tries


def test_a_report_that_comes_too_soon_is_sent_again_without_a_word() -> None:
    messages: list[str] = []
    with report_receiver.receiving() as server:
        server.answers = [429, 429]
        pusher = progress_pusher.Pusher(
            process_settings.ProgressTarget(server.url, None, None, 0.01), messages.append
        )
        pusher.put(report(7))
        waiting.until(lambda: len(server.got) == 3, "the report is taken")
        pusher.close(60)
    assert [body["step"] for _, body in server.got] == [7] * 3
    assert messages == []


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"])
def test_neither_report_nor_token_goes_to_a_proxy(
    variable: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with report_receiver.receiving() as proxy, report_receiver.receiving() as server:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.setattr(urllib.request, "_opener", None)  # It keeps the proxies that it found.
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        pusher = progress_pusher.Pusher(
            process_settings.ProgressTarget(server.url, token, None, 60), print
        )
        pusher.put(report(7))
        pusher.close(60)
        assert [(who, body["step"]) for who, body in server.got] == [("Bearer secret", 7)]
        assert proxy.got == []


def test_a_report_that_is_too_long_goes_without_its_placement() -> None:
    names = tuple(f"{'層' * 200}{number}" for number in range(60))
    placement = protocol.Placement(mesh=job_file.Mesh(stage=61, cuts=names))
    with report_receiver.receiving() as server:
        pusher = progress_pusher.Pusher(
            process_settings.ProgressTarget(server.url, None, None, 60), print
        )
        pusher.put(report(7).model_copy(update={"placement": placement}))
        pusher.close(60)
    assert [body for _, body in server.got] == [{"step": 7, "epoch": 0, "metrics": {"loss": "0.5"}}]


def examples() -> list[str]:
    """The model files of the documentation."""
    page = (launch.REPOSITORY / "docs" / "how-to/model-interface.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return [block for block in blocks if "def build_model" in block]


@pytest.mark.parametrize(
    ("text", "metric"),
    [*zip(examples(), ("val_mean_absolute_error", "loss", "val_judge_loss"), strict=True)],
    ids=("first", "adapted", "phases"),
)
def test_the_examples_of_the_documentation_run(
    tmp_path: pathlib.Path, text: str, metric: str
) -> None:
    ended = run(tmp_path, text, globalBatchSize=16)
    assert ended.code == 0, ended
    assert metric in launch.summary(tmp_path).metrics


def test_warnings_of_tensorflow_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables, level in (({}, "1"), ({"TF_CPP_MIN_LOG_LEVEL": "3"}, "3")):
        monkeypatch.setattr(os, "environ", variables)
        monkeypatch.setattr(__main__, "attempt", lambda *_: exits.Exit.DONE)
        monkeypatch.setattr(termination, "end", lambda _: None)
        __main__.main()
        assert variables["TF_CPP_MIN_LOG_LEVEL"] == level
