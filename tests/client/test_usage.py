"""Words of a command that no verb takes: one sentence, and where to read more."""

import pathlib

import pytest

from testing import invocation

REFUSED = {
    "sttus": "there is no verb 'sttus': did you mean 'status'?; see `tfparallel --help`",
    "bundle": "there is no verb 'bundle': there are init, run, validate, plan, compare, rehearse,",
    "run": "missing argument 'JOB.yaml'; see `tfparallel run --help`",
    "status -o yml": "invalid value for '-o' / '--output': 'yml' is not one of 'table', 'wide',",
    "status --contxt a": "no such option '--contxt'",
    "status -A digits": "JOB names a job of one namespace: leave it out, or -A; see",
    "status -w": "--watch follows one job: give its name, or follow all with `tfparallel get jobs"
    " -w`; see `tfparallel status --help`",
    "get pods": "'pods' is not `jobs` or `model`; see `tfparallel get --help`",
    "get model": "missing argument 'JOB|FOLDER'; see `tfparallel get model --help`",
    "get model ./none": "./none: no such folder; give that of a local run, such as runs/JOB",
    "tensorboard runs/none": "runs/none: no such folder; give that of a local run, such as",
    "logs digits worker-0 --all": "--all shows every replica: leave out 'worker-0', or --all",
    "scale digits": "missing option '--workers'; see `tfparallel scale --help`",
    "scale digits --workers=-1": "invalid value for '--workers': -1 is not in the range x>=0",
    "completion tcsh": "invalid value for '{bash|zsh|fish}': 'tcsh' is not one of 'bash',",
    "run model.py": "model.py: a Python file; give a job's YAML file, which `tfparallel",
    "run modle.py": "modle.py: no such file; give the path of a job's YAML file",
    "submit model.py": "model.py: a Python file; give a job's YAML file, which `tfparallel",
}


@pytest.mark.parametrize("line", REFUSED)
def test_one_sentence_says_what_is_wrong_and_where_to_read_on(
    line: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("x = 1\n")
    result = invocation.invoke(line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    [sentence] = result.stderr.splitlines()
    assert sentence.startswith(f"error: {REFUSED[line]}")


@pytest.mark.parametrize("arguments", [[], ["get"]])
def test_a_command_without_a_verb_or_a_noun_prints_its_help(arguments: list[str]) -> None:
    result = invocation.invoke(arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: {' '.join(['tfparallel', *arguments])} [OPTIONS]")
    asked = invocation.invoke([*arguments, "--help"])
    assert result.stdout == asked.stdout
