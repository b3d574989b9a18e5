"""What `tfparallel plan` asks, and what it prints: without TensorFlow."""

import json
import pathlib
import re
import shutil

import pytest
import yaml
from rich import console

from testing import pages, paths
from testing.operator import local_jobs
from tfparallel.planning import plan_tables, request
from tfparallel_operator.api import load
from tfparallel_trainer.contract import gpu_types, job_file, plan, progress

EXAMPLE = paths.EXAMPLES / "split-deep-cnn/job.yaml"


def question(file: pathlib.Path, options: request.PlanOptions | None = None) -> plan.Question:
    return request.read(file, options or request.PlanOptions()).question


def test_a_job_says_devices_mesh_microbatches_and_batch() -> None:
    asked = question(EXAMPLE)
    assert (asked.module, asked.processes, asked.devices) == ("model.py", 4, 1)
    assert asked.mesh == {"data": 1, "stage": 4, "spatial": 1, "tensor": 1}
    assert (asked.microbatches, asked.batch) == (8, 64)
    assert (asked.folder, asked.schedule) == (str(EXAMPLE.parent), "1F1B")


def test_the_planner_chooses_what_a_job_leaves_open() -> None:
    for file in (EXAMPLE.parents[1] / "split-cnn/auto.yaml", paths.EXAMPLES / "digits/job.yaml"):
        asked = question(file)
        assert (asked.mesh, asked.microbatches) == (None, None)
        assert (asked.shard_optimizer, asked.recompute) == (None, None)
        assert asked.batch == 64


def test_options_go_before_the_fields_of_the_job() -> None:
    options = request.PlanOptions(
        devices=8, memory="1GiB", mesh="stage=2,data=-1", microbatches=2, schedule="GPipe", batch=16
    )
    asked = question(EXAMPLE, options)
    assert (asked.processes, asked.devices) == (4, 2)
    assert (asked.memory, asked.mesh) == (2**30, {"stage": 2, "data": -1})
    assert (asked.microbatches, asked.batch) == (2, 16)
    assert asked.schedule is job_file.PipelineSchedule.GPIPE
    assert question(EXAMPLE, request.PlanOptions(pods=2)).devices == 2
    free = question(EXAMPLE, request.PlanOptions(mesh="auto"))
    assert (free.mesh, free.microbatches) == (None, None)
    assert (free.shard_optimizer, free.recompute) == (None, None)
    changed = question(EXAMPLE, request.PlanOptions(overrides=("spec.mesh.microbatches=4",)))
    assert changed.microbatches == 4
    assert changed.shard_optimizer is False
    assert changed.recompute is False
    overrides = ("spec.mesh={data: 2, stage: 2, shardOptimizer: true}",)
    assert question(EXAMPLE, request.PlanOptions(overrides=overrides)).shard_optimizer
    overrides = ("spec.mesh={stage: 4, recompute: true}",)
    assert question(EXAMPLE, request.PlanOptions(overrides=overrides)).recompute


@pytest.mark.parametrize(
    ("resources", "count"),
    [
        ("{requests: {memory: 1Gi}, limits: {memory: 2Gi}}", 2**30),
        ("{limits: {memory: 2Gi}}", 2**31),  # Kubernetes takes it for the request
        ("{requests: {cpu: 1}}", None),
    ],
)
def test_a_job_says_whether_its_state_is_copied_and_what_its_pods_request(
    tmp_path: pathlib.Path, resources: str, count: int | None
) -> None:
    written = yaml.safe_load(EXAMPLE.read_text())
    [container] = written["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["resources"] = yaml.safe_load(resources)
    file = tmp_path / "job.yaml"
    shutil.copy(EXAMPLE.with_name("model.py"), tmp_path)
    file.write_text(yaml.safe_dump(written))
    asked = question(file)
    assert (asked.saves_checkpoints, asked.requested_memory) == (True, count)
    without = request.PlanOptions(overrides=("spec.trainer.checkpoint=null",))
    assert not question(file, without).saves_checkpoints


def test_a_model_needs_the_number_of_devices() -> None:
    model = EXAMPLE.parent / "model.py"
    asked = question(model, request.PlanOptions(devices=4))
    assert (asked.processes, asked.devices, asked.batch) == (4, 1, 32)
    assert (asked.mesh, asked.microbatches, asked.schedule) == (None, None, "1F1B")
    for options, sentence in (
        (request.PlanOptions(), "--devices: missing; .* Give --devices"),
        (request.PlanOptions(devices=2, overrides=("spec.x=1",)), "--set spec.x=1: .* is no job"),
    ):
        with pytest.raises(load.SpecError, match=sentence):
            question(model, options)
    with pytest.raises(load.SpecError, match=r"none\.py: no such file"):
        question(model.with_name("none.py"), request.PlanOptions(devices=2))


JOB = """
apiVersion: tfparallel.dev/v1alpha1
kind: TFParallelJob
metadata: {name: hello}
spec:
  runPolicy: {suspend: true}
  trainer: {epochs: 1, source: {configMap: {name: code}}}
  tfReplicaSpecs:
    Chief: {devices: 2}
    Worker: {devices: 2, replicas: 2}
    PS: {}
"""
CODE = f"""
---
kind: ConfigMap
metadata: {{name: code}}
data: {{model.py: {json.dumps(local_jobs.MODULE)}}}
"""


def test_the_code_may_be_in_the_file_of_a_job_that_is_suspended(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB + CODE)
    subject = request.read(file, request.PlanOptions())
    assert (subject.question.processes, subject.question.devices) == (3, 2)
    assert subject.files == {"model.py": local_jobs.MODULE}
    assert subject.name == "hello"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("{devices: 2}", "{devices: 1}", "Chief has 1 and Worker has 2: give them the same"),
        ("source: {configMap: {name: code}}", "module: no.py", "spec.trainer.module: received"),
        ("epochs: 1", "epoch: 1", "spec.trainer.epoch: unknown field"),
    ],
)
def test_a_job_that_cannot_be_planned_is_refused(
    tmp_path: pathlib.Path, old: str, new: str, sentence: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text((JOB + CODE).replace(old, new))
    with pytest.raises(load.SpecError, match=sentence):
        request.read(file, request.PlanOptions())


def _on_gpus(folder: pathlib.Path, *selectors: str) -> pathlib.Path:
    """Write a job whose chief and workers have two GPUs each, on nodes with labels."""
    file = folder / "job.yaml"
    job = JOB + CODE
    for role, selector in zip(
        ("Chief: {devices: 2", "Worker: {devices: 2"), selectors, strict=True
    ):
        template = (
            f"template: {{spec: {{containers: [{{name: tensorflow}}], nodeSelector: {selector}}}}}"
        )
        job = job.replace(role, f"{role}, {template}")
    file.write_text(job)
    return file


def test_labels_of_nodes_say_which_gpus_a_plan_is_for(tmp_path: pathlib.Path) -> None:
    gke = "{cloud.google.com/gke-accelerator: nvidia-a100-80gb, a: b}"
    nvidia = "{nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}"
    file = _on_gpus(tmp_path, gke, nvidia)
    subject = request.read(file, request.PlanOptions())
    assert (subject.question.device_type, subject.notes) == ("A100-80GB", ())
    assert question(file, request.PlanOptions(device_type="T4")).device_type == "T4"
    assert question(file, request.PlanOptions(calibrate=True)).device_type is None
    with pytest.raises(load.SpecError, match=r"--calibrate: .* no T4; .* remove --device-type"):
        question(file, request.PlanOptions(calibrate=True, device_type="T4"))


@pytest.mark.parametrize("selector", ["{}", "{nvidia.com/gpu.product: NVIDIA-H200}"])
def test_gpus_that_no_label_names_are_told_to_be_planned_as_cores(
    tmp_path: pathlib.Path, selector: str
) -> None:
    file = _on_gpus(tmp_path, "{nvidia.com/gpu.product: Unknown}", selector)
    subject = request.read(file, request.PlanOptions())
    [note] = subject.notes
    assert subject.question.device_type is None
    assert note.startswith("spec.tfReplicaSpecs.Chief: no label in the nodeSelector")
    assert note.endswith("Give --device-type")
    assert request.read(file, request.PlanOptions(device_type="T4")).notes == ()


def test_the_page_shows_the_gpus_that_the_planner_knows() -> None:
    page = (paths.PAGES / "how-to/planner.md").read_text(encoding="utf-8")
    rows = [
        f"| `{gpu.name}` | {gpu.memory / 2**30:.1f} GiB | {gpu.single:g} | {gpu.half:g} |"
        f" {gpu.bandwidth:,g} | {gpu.link:g} |"
        for gpu in gpu_types.DEVICE_TYPES.values()
    ]
    assert "\n".join(rows) in page


def test_a_job_without_the_trainer_has_no_plan() -> None:
    with pytest.raises(load.SpecError, match=r"spec\.trainer: missing; the planner needs"):
        request.read(paths.EXAMPLES / "tf-config/job.yaml", request.PlanOptions())


def test_cuts_of_a_job_are_left_out_with_a_note() -> None:
    file = paths.EXAMPLES / "split-two-models/job.yaml"
    [note] = request.read(file, request.PlanOptions(overrides=("spec.mesh.cuts=[dense]",))).notes
    assert note.startswith("spec.mesh.cuts: dense is not used here")


def _span(stage: int, work: str, begin: float, end: float) -> plan.Span:
    return plan.Span(stage=stage, work=work, microbatch=0, begin=begin, end=end)


SPANS = (
    *(_span(0, "forward", 0.0, 0.3), _span(0, "message", 0.3, 0.4)),
    *(_span(1, "message", 0.3, 0.4), _span(1, "forward", 0.4, 0.6), _span(1, "backward", 0.6, 0.8)),
    *(_span(1, "message", 0.8, 0.9), _span(0, "message", 0.8, 0.9), _span(0, "backward", 0.9, 1.0)),
)
"""Of two seconds, stages compute 0.8 and send or receive 0.4."""


def _stage(*nodes: str) -> plan.Stage:
    holds = plan.Bytes(
        parameters=2**30, gradients=2**30, slots=2**31, activations=1023 * 2**20, working=8, peak=9
    )
    return plan.Stage(
        nodes=nodes,
        split=dict.fromkeys(nodes, "channels over tensor"),
        holds=holds,
        held_microbatches=1,
        forward_seconds=0.1,
        backward_seconds=0.1,
        message_seconds=0.1,
        update_seconds=0.5,
        sent_bytes=8,
        busy_seconds=0.0012,
    )


def planned() -> plan.Plan:
    """A plan of a mesh with all axes, whose update takes a third of the step."""
    names = [f"block_{number}_group_normalization" for number in range(9)]
    mesh = plan.Axes(data=2, stage=2, spatial=2, tensor=2)
    return plan.Plan(
        mesh=mesh,
        microbatches=1,
        schedule=job_file.PipelineSchedule.GPIPE,
        batch=64,
        memory=None,
        measured=False,
        order=tuple(range(10)),
        ends=(9,),
        stages=(_stage(*names), _stage("a_single_layer_whose_name_is_longer_than_its_column")),
        ranks=tuple(
            plan.Rank(rank=n, process=n, device=0, data=0, stage=n, spatial=0, tensor=1)
            for n in range(2)
        ),
        step_seconds=1.5,
        bubble=plan.bubble(SPANS, 2),
        message_share=plan.message_share(SPANS, 2),
        spans=SPANS,
        reasons=("Stage 0 sets the pace: it is busy for 80% of a step, " + "and waits " * 9,),
        alternatives=(
            plan.Alternative(
                mesh=mesh,
                microbatches=64,
                what="block_8_group_normalization in stage 0 instead of 1",
                step_seconds=None,
                peak_bytes=1023 * 2**20,
            ),
        ),
    )


def test_waiting_is_what_stages_do_not_compute_of_the_schedule() -> None:
    assert plan.bubble(SPANS, 2) == pytest.approx(0.6)
    assert plan.message_share(SPANS, 2) == pytest.approx(0.2)


def test_the_plan_and_the_pipeline_of_a_run_say_the_same_of_waiting() -> None:
    """A run that goes as planned waits as long as planned."""
    answer = planned()
    mesh = job_file.Mesh(stage=2)
    run = plan.Pipeline(
        placement=progress.Placement(mesh=mesh, stages=()),
        planned=answer,
        step_seconds=None,
        spans=tuple(span for span in SPANS if span.work != plan.MESSAGE),
    )
    assert "· waiting 60%" in plan_tables.headline(answer)
    assert plan_tables.waiting(run) == "wait 60% of the schedule (planned 60%)"


@pytest.mark.parametrize("width", [80, 120])
def test_a_plan_fits_a_terminal(width: int) -> None:
    """Lines break between words; only a name that is longer than its column is cut."""
    out = console.Console(width=width, force_terminal=True, color_system=None, record=True)
    answer = planned()
    with out.capture() as capture:
        plan_tables.show(answer, out)
    shown = capture.get()
    assert max(map(len, shown.splitlines())) <= width
    parts = set(shown.replace("…", " … ").split())
    for sentence in (plan_tables.headline(answer), *answer.reasons, answer.alternatives[0].what):
        assert set(sentence.split()) <= parts
    for name in ("block_0_group_normalization", "block_8_group_normalization"):
        assert shown.count(name) == 2
    sizes = r"^0 +1 GiB +1 GiB +2 GiB +1023 MiB +8 B +9 B +1\.2 ms *$"
    assert re.search(sizes, shown, flags=re.MULTILINE)


def test_a_peak_in_the_update_is_told_apart_from_those_that_the_table_adds_up_to() -> None:
    answer = planned()
    assert list(plan_tables.updates(answer)) == []
    first, second = answer.stages
    holds = second.holds.model_copy(update={"peak": 2**32 + 1023 * 2**20 + 9})
    stages = (first, second.model_copy(update={"holds": holds}))
    [line] = plan_tables.updates(answer.model_copy(update={"stages": stages}))
    assert line == "peak in the optimizer's update, which has memory of its own: stage 1"


def test_the_schedule_is_as_wide_as_asked() -> None:
    for width in (40, 80):
        *rows, _ = plan_tables.schedule(planned(), width)
        assert {len(row) for row in rows} == {width}


def test_the_page_lists_the_fields_of_a_plan() -> None:
    listed = [row[0] for row in pages.rows("how-to/planner.md", "## Read a plan as data")]
    fields = plan.Plan.model_json_schema(by_alias=True)["properties"]
    assert sorted(listed) == sorted(fields)
