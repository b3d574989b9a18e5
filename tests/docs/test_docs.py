"""The pages say what the code does."""

import difflib
import enum
import pathlib
import re
import tomllib

import pytest
import yaml

from benchmarks.pages import captures
from testing import invocation, pages, paths
from testing.operator import builders
from testing.trainer import cases_tutorials, fit_support
from tfparallel_operator.api import load, names, policies, types
from tfparallel_operator.core import installation, layout, observation, replicas
from tfparallel_operator.core.life import failure, restart_policy
from tfparallel_operator.core.queue import gang
from tfparallel_trainer.contract import job_file, progress
from tfparallel_trainer.engines.split.pipeline import schedule
from tfparallel_trainer.keras_fit import supported_arguments

TEXT = (".py", ".yaml", ".md")


@pytest.mark.parametrize("page", pages.ALL, ids=lambda page: str(page.relative_to(paths.ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: pathlib.Path) -> None:
    assert pages.broken_links(page) == []


@pytest.mark.parametrize("page", pages.ALL, ids=lambda page: str(page.relative_to(paths.ROOT)))
def test_every_job_in_a_page_is_a_valid_one(page: pathlib.Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for document in yaml.safe_load_all(block):
            if isinstance(document, dict) and document.get("kind") == names.KIND:
                assert load.parse_job(document).metadata.name


def test_words_that_yaml_reads_as_truth_values_are_quoted() -> None:
    """YAML 1.1 reads On and Off without quotes as true and false, and so does the API server."""
    enums = {
        str(field.alias): field.annotation
        for field in job_file.TrainerSpec.model_fields.values()
        if isinstance(field.annotation, type) and issubclass(field.annotation, enum.StrEnum)
    }
    fields = [
        name for name, kind in enums.items() if any(yaml.safe_load(word) != word for word in kind)
    ]
    assert fields == ["verify", "jitCompile"]
    written = re.compile(rf"\b(?:{'|'.join(fields)}): *([\w\"']+)")
    folders = [paths.EXAMPLES, paths.TRAINER, *map(paths.ROOT.joinpath, ("operator", "client"))]
    sources = [file for folder in folders for file in folder.rglob("*.*") if file.suffix in TEXT]
    for file in (*pages.ALL, *sources):
        for value in written.findall(file.read_text()):
            assert isinstance(yaml.safe_load(value), str), f"{file}: {value}"


def test_the_readme_shows_what_init_writes(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "flowers"
    invocation.invoke(["init", str(folder)], catch_exceptions=False)
    assert pages.blocks(pages.README, "python") == [(folder / "model.py").read_text()]
    assert pages.blocks(pages.README, "yaml") == [(folder / "job.yaml").read_text()]


def test_the_readme_shows_what_why_says_of_the_job_that_waits() -> None:
    line = "tfparallel why large"
    blocks = pages.blocks(captures.PAGE, "console")
    [capture] = [block for block in blocks if block.startswith(f"$ {line}\n")]
    [shown] = [block for block in pages.blocks(pages.README, "console") if line in block]
    assert shown == capture


def test_the_job_of_the_page_on_servers_is_the_example() -> None:
    page = (paths.ROOT / "docs/how-to/parameter-servers.md").read_text()
    [block] = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert block == (paths.ROOT / "examples/digits-servers/job.yaml").read_text()


def test_the_page_on_strategies_shows_its_example_and_every_strategy() -> None:
    page = (paths.ROOT / "docs/explanation/strategies.md").read_text()
    [job] = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert job == (paths.ROOT / "examples/custom-strategy/job.yaml").read_text()
    [function] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert function in (paths.ROOT / "examples/custom-strategy/model.py").read_text()
    listed = [
        row[0]
        for row in pages.rows(
            "explanation/strategies.md", "# Strategies: how replicas train together"
        )
    ]
    assert listed == list(types.Strategy)


def test_the_page_on_model_split_shows_its_examples() -> None:
    page = (paths.ROOT / "docs/how-to/model-split.md").read_text()
    first = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)[0]
    assert first == (paths.ROOT / "examples/split-two-models/job.yaml").read_text()
    shown = pages.rows("how-to/model-split.md", "has a manifest for each way:")
    assert {row[0] for row in shown} == {file.name for file in paths.example_jobs("split-cnn")}
    for file, mesh, places, _ in shown:
        document = yaml.safe_load((paths.ROOT / "examples/split-cnn" / file).read_text())
        job = load.parse_job(document)
        assert yaml.safe_load(mesh) == document["spec"]["mesh"]
        worker = job.spec.tf_replica_specs[types.Role.WORKER]
        numbers = [worker.replicas, load.devices_of(worker)]
        assert [int(number) for number in re.findall(r"\d+", places)] == numbers
    for folder in paths.ROOT.glob("examples/split-*"):
        assert f"`{folder.name}`" in page or f"`examples/{folder.name}`" in page


def test_the_page_on_the_planner_shows_its_example() -> None:
    page = (paths.ROOT / "docs/how-to/planner.md").read_text().partition("<!-- auto -->\n")[2]
    block, *_ = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert block == (paths.ROOT / "examples/split-cnn/auto.yaml").read_text()


def test_the_page_on_the_planner_says_what_the_condition_says_of_its_status() -> None:
    page = (paths.ROOT / "docs/how-to/planner.md").read_text().partition("<!-- memory -->\n")[2]
    [status] = re.findall(r"```yaml\n(placement:.*?)```", page, flags=re.DOTALL)
    placement = progress.Placement.model_validate(yaml.safe_load(status)["placement"])
    memory = placement.exceeded_memory
    assert memory is not None
    [shown] = re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)
    assert " ".join(shown.split()) == f"{memory.problem}. {memory.remedy}"


def test_the_page_on_model_split_names_every_axis_and_how_long_stages_wait() -> None:
    axes = [row[0] for row in pages.rows("how-to/model-split.md", "## The mesh")]
    assert axes == [*job_file.Mesh().axes]
    for row in pages.rows("how-to/model-split.md", "## Microbatches and the schedule"):
        microbatches, *shares = (int(cell.removesuffix("%")) for cell in row)
        for stages, share in zip((2, 4, 8), shares, strict=True):
            assert abs(100 * schedule.bubble(stages, microbatches) - share) <= 0.5
    listed = pages.rows(
        "how-to/model-split.md", "The schedule is the order in which a stage works on them:"
    )
    order = [row[0].split("`")[0] for row in listed]
    assert order == list(job_file.PipelineSchedule)


def test_the_placement_in_the_page_on_model_split_is_one_that_is_reported() -> None:
    page = (paths.ROOT / "docs/how-to/model-split.md").read_text()
    [block] = re.findall(r"```yaml\n(placement:.*?)```", page, flags=re.DOTALL)
    placement = yaml.safe_load(block)["placement"]
    schedule_name = placement["mesh"].pop("schedule")
    parsed = progress.Placement.model_validate(
        {**placement, "mesh": {**placement["mesh"], "schedule": str(schedule_name)}}
    )
    assert [stage.stage for stage in parsed.stages] == [0, 1]


def test_the_states_are_listed_in_the_order_in_which_they_are_derived() -> None:
    listed = [row[0] for row in pages.rows("reference/status.md", "## State")]
    assert listed == ["Succeeded", "Failed", "Suspended", "Restarting", "Running", "Pending"]
    assert set(listed) == {state.value for state in names.State}


def test_the_versions_are_those_of_the_requirements() -> None:
    page = (paths.PAGES / "operate/install.md").read_text(encoding="utf-8")
    pins = (paths.ROOT / "requirements/trainer.txt").read_text(encoding="utf-8")
    [tensorflow] = re.findall(r"^tensorflow-cpu==(\d+\.\d+)", pins, re.M)
    [keras] = re.findall(r"^keras==(\d+\.\d+)", pins, re.M)
    assert f"TensorFlow {tensorflow}, Keras {keras};" in page
    for product in ("client", "operator"):
        text = (paths.ROOT / product / "pyproject.toml").read_text(encoding="utf-8")
        python = tomllib.loads(text)["project"]["requires-python"].removeprefix(">=")
        assert f"| Python {python} or newer;" in page


def test_the_page_on_fit_shows_what_fit_supports() -> None:
    page = (paths.ROOT / "docs/how-to/fit.md").read_text()
    assert fit_support.table(fit_support.ARGUMENTS, "argument") in page
    assert fit_support.table(supported_arguments.CALLBACKS, "callback") in page


@pytest.mark.parametrize("row", pages.rows("how-to/tutorials.md", "job:"), ids=lambda row: row[0])
def test_the_page_on_tutorials_counts_the_lines_that_change(row: list[str]) -> None:
    [tutorial] = [tutorial for tutorial in cases_tutorials.ALL if f"[{tutorial.title}]" in row[0]]
    before, after = tutorial.published.splitlines(), tutorial.keras_3.splitlines()
    changes = [line[0] for line in difflib.ndiff(before, after) if line[2:] and line[0] in "-+"]
    assert f"-{changes.count('-')} +{changes.count('+')}" == row[-1]


SCOPES = {
    restart_policy.Scope.GANG: ["all replicas"],
    restart_policy.Scope.REPLICA: ["that worker", "the chief", "the evaluator"],
    restart_policy.Scope.REPLICA_AND_CHIEF: ["that server and the chief"],
}


@pytest.mark.parametrize(
    "row", pages.rows("explanation/restarts.md", "## What is restarted"), ids=lambda row: row[0]
)
def test_what_is_restarted_is_what_the_table_says(row: list[str]) -> None:
    strategy, *cells = row
    roles = {
        "Mirrored": {"chief": 1, "evaluator": 1},
        "MultiWorkerMirrored": {"chief": 1, "worker": 1, "evaluator": 1},
        "ModelSplit": {"chief": 1, "worker": 1},
        "Custom": {"chief": 1, "worker": 1, "evaluator": 1},
        "TPU": {"chief": 1, "evaluator": 1},
        "ParameterServer": {"chief": 1, "worker": 1, "ps": 1, "evaluator": 1},
    }[strategy]
    manifest = builders.manifest(trainer=strategy == "ModelSplit", **roles)
    if strategy in ("ModelSplit", "Custom", "TPU"):  # which are never inferred
        manifest["spec"]["strategy"] = strategy
    if strategy == "ModelSplit":
        manifest["spec"]["mesh"] = {"data": -1}
    job = load.parse_job(manifest)
    plan = layout.build(job)
    assert plan.strategy == strategy
    columns = dict(zip(("worker", "chief", "ps", "evaluator"), cells, strict=True))
    for role in roles:
        lost = replicas.Replica(types.Role(builders.ROLES[role]), 0)
        ended = observation.Exit(1, "Error", "", None)
        loss = failure.Loss(lost, policies.Cause.RETRYABLE_EXIT, ended)
        assert columns[role] in SCOPES[restart_policy.scope(plan, loss)]


def test_every_cause_and_action_is_listed_with_what_it_leads_to() -> None:
    listed = pages.rows("explanation/restarts.md", "## Why a replica was lost")
    assert [row[0] for row in listed] == list(policies.Cause)
    plan = layout.build(builders.a_job(worker=1))
    for name, _, counter, leads_to in listed:
        cause = policies.Cause(name)
        code = 65 if cause is policies.Cause.PERMANENT_EXIT else 1
        ended = observation.Exit(code, "Error", "", None)
        loss = failure.Loss(replicas.Replica(types.Role.WORKER, 0), cause, ended)
        action = restart_policy.find_action(plan, plan.job.status, loss)
        fails = action.outcome is restart_policy.LossAction.FAIL
        assert fails == (leads_to == "the job fails")
        assert cause.bounded == counter.startswith("restarts.failure")
    actions = [row[0] for row in pages.rows("explanation/restarts.md", "## Rules of your own")]
    assert actions == list(policies.Action)


def test_the_page_on_life_lists_every_deadline_policy_and_refusal() -> None:
    fields = types.RunPolicy.model_json_schema(by_alias=True)["properties"]
    listed = {row[0].split("`")[0] for row in pages.rows("explanation/life.md", "## Deadlines")}
    assert listed == {name for name in fields if "Seconds" in name}
    listed = {row[0].split("`")[0] for row in pages.rows("explanation/life.md", "## The end")}
    assert listed == set(types.CleanPodPolicy)
    targets = [
        row[0]
        for row in pages.rows("explanation/life.md", "times, each for the end that `when` names:")
    ]
    assert targets == list(policies.CleanupTarget)
    page = (paths.PAGES / "explanation/life.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## Refused pods$(.*?)^The operator retries", page, re.M | re.S)
    reasons = {*re.findall(r"`([A-Z]\w+)`", section)} - {names.ConditionType.CREATION_REFUSED}
    assert reasons == {
        names.Reason.QUOTA_EXCEEDED,
        names.Reason.PRIORITY_CLASS_NOT_FOUND,
        names.Reason.ADMISSION_DENIED,
        names.Reason.DEFAULTS_CONFLICT,
        names.Reason.SERVER_UNAVAILABLE,
        names.Reason.TOO_MANY_REQUESTS,
        names.Reason.HOST_PORTS_TAKEN,
        names.Reason.GANG_SCHEDULER_NOT_INSTALLED,
        names.Reason.KUEUE_NOT_INSTALLED,
        names.Reason.NAME_CONFLICT,
        names.Reason.NAME_HELD,
        names.Reason.DELETION_STUCK,
    }


def test_the_page_on_gangs_lists_every_scheduler_and_what_it_knows() -> None:
    listed = [row[0] for row in pages.rows("how-to/scheduling.md", "how:")]
    assert listed == list(types.GangScheduler)
    fields = {row[0]: row[2] for row in pages.rows("how-to/scheduling.md", "in TFJob:")}
    assert set(fields) == set(types.SchedulingPolicy.model_json_schema(by_alias=True)["properties"])
    values = {"minResources": {"cpu": 1}, "queue": "q", "priorityClass": "high"}
    for field, schedulers in fields.items():
        for scheduler in types.GangScheduler:
            job = builders.a_job(
                worker=2,
                spec={"scheduling": {"gang": scheduler.value}},
                run_policy={"schedulingPolicy": {field: values.get(field, 1)}},
            )
            refused = gang.find_problem(layout.build(job), installation.Gangs())
            assert (refused is None) == (f"`{scheduler}`" in f"`{schedulers}`")
