"""Random jobs: what is drawn, written, kept and made small; training them is tested elsewhere."""

import ast
import collections
import pathlib

import pytest

from testing.trainer.random_models import drawing, module_source, outcomes, shrinking, spec

SEED = 3
MODELS = 150


def draw_all() -> list[spec.Job]:
    return [job for number in range(MODELS) for job in drawing.draw_jobs(SEED, number)]


def test_a_seed_and_a_number_give_the_same_jobs() -> None:
    assert drawing.draw_jobs(SEED, 5) == drawing.draw_jobs(SEED, 5)
    assert drawing.draw_jobs(SEED, 5) != drawing.draw_jobs(SEED, 6)
    assert drawing.draw_jobs(SEED, 5) != drawing.draw_jobs(SEED + 1, 5)


def test_jobs_are_varied_and_fit_their_layouts() -> None:
    jobs = draw_all()
    assert {str(job.layout) for job in jobs} == {str(layout) for layout, _ in drawing.LAYOUTS}
    for job in jobs:
        assert job.model.training.batch % job.layout.divisor == 0
        assert job.model.training.batch >= job.layout.batch_ranks
        assert job.model.training.examples > job.model.training.batch
    models = [job.model for job in jobs]
    kinds = collections.Counter(node.layer.kind for model in models for node in model.nodes)
    assert len(kinds) > 70
    assert len({model.training.optimizer.kind for model in models}) > 13
    assert any(node.shared for model in models for node in model.nodes)
    assert {len(model.outputs) for model in models} == {1, 2, 3}
    assert any(output.loss is None for model in models for output in model.outputs)


def test_each_model_file_is_python_with_what_it_names() -> None:
    for job in draw_all()[:: drawing.LAYOUTS_PER_MODEL]:
        text = module_source.write(job.model)
        tree = ast.parse(text)
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {"build_model", "compile_model", "training_data"} <= functions
        assert ("callbacks" in functions) == bool(job.model.training.callbacks)
        compile(tree, "model.py", "exec")


def outcome(number: int, layout: int, ending: outcomes.Ending) -> outcomes.Outcome:
    return outcomes.Outcome(number, layout, "Mirrored on 1x2", ending, "", 0.0)


def outcomes_of(number: int, ending: outcomes.Ending) -> list[outcomes.Outcome]:
    return [outcome(number, layout, ending) for layout in range(drawing.LAYOUTS_PER_MODEL)]


def test_a_campaign_resumes_where_it_was_killed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state.jsonl"
    state = outcomes.CampaignFile.open(path, SEED)
    state.add(outcomes_of(1, outcomes.Ending.EQUAL))
    state.add(outcomes_of(0, outcomes.Ending.DIFFERENT))
    path.write_text(path.read_text() + '{"model": 2, "pl')
    resumed = outcomes.CampaignFile.open(path, SEED + 1)
    assert resumed.seed == SEED
    assert resumed.outcomes == state.outcomes
    assert resumed.remaining(4 * drawing.LAYOUTS_PER_MODEL) == [2, 3]
    assert resumed.failed() == [0]
    resumed.add(outcomes_of(0, outcomes.Ending.REFUSED))
    assert outcomes.CampaignFile.open(path, SEED).failed() == []
    counts = outcomes.counts(outcomes.CampaignFile.open(path, SEED).outcomes)
    assert counts[outcomes.Ending.REFUSED] == counts[outcomes.Ending.EQUAL] == 4


def test_a_model_of_which_jobs_lack_runs_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "state.jsonl"
    outcomes.CampaignFile.open(path, SEED).add(outcomes_of(0, outcomes.Ending.EQUAL)[:-1])
    assert outcomes.CampaignFile.open(path, SEED).remaining(4) == [0]


def test_a_failure_shrinks_to_what_it_needs() -> None:
    job = next(job for job in draw_all() if len(module_source.needed_nodes(job.model)) > 6)
    culprit = module_source.needed_nodes(job.model)[2]

    def fail(job: spec.Job) -> shrinking.Failure:
        names = {node.name for node in module_source.needed_nodes(job.model)}
        is_failing = culprit.name in names
        return outcomes.Ending.DIFFERENT if is_failing else outcomes.Ending.EQUAL, ""

    small = shrinking.shrink(job, fail, str, trials=1000)
    names = [node.name for node in module_source.needed_nodes(small.model)]
    assert culprit.name in names
    assert len(small.model.outputs) == 1
    assert small.model.training.callbacks == ()
    assert small.model.training.optimizer.kind == "keras.optimizers.SGD"
    assert small.model.training.epochs == 1
    assert all(not node.layer.options for node in small.model.nodes)
    assert len(names) < len(module_source.needed_nodes(job.model))


def test_a_job_that_does_not_fail_is_not_shrunk() -> None:
    job = drawing.draw_jobs(SEED, 0)[0]
    with pytest.raises(ValueError, match="does not fail"):
        shrinking.shrink(job, lambda _: (outcomes.Ending.EQUAL, ""), str)


def test_a_sentence_loses_the_names_of_one_model() -> None:
    first = "dense_3 gives (None, 3) and output_0/kernel has 1.5e-3."
    other = "dense_17 gives (None, 12) and output_1/kernel has 2."
    assert outcomes.generalise(first) == outcomes.generalise(other)


def test_a_smaller_job_is_another_model_file() -> None:
    for job in draw_all()[:40]:
        for candidate in shrinking.candidates(job):
            ast.parse(module_source.write(candidate.model))
            assert candidate != job
