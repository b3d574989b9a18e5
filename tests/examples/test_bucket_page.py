"""The job of the page on buckets, run as the page says, with a bucket of a real server."""

import os
import pathlib
import re
import shutil
import tempfile

import keras
import pytest

from testing import buckets, invocation, paths
from tfparallel_trainer.contract import outputs

PAGE = (paths.ROOT / "docs/how-to/buckets.md").read_text()


@pytest.mark.usefixtures("processes")
def test_the_job_of_the_page_leaves_its_model_in_the_bucket(
    tmp_path: pathlib.Path, s3: buckets.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, code = (
        re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)[0].replace("my-bucket", s3.name)
        for language in ("yaml", "python")
    )
    (tmp_path / "job.yaml").write_text(job)
    shutil.copy(paths.ROOT / "examples/digits/model.py", tmp_path)
    variables = {**os.environ, **s3.variables}
    done = invocation.run("run", "job.yaml", folder=tmp_path, env=variables, timeout=240)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    results = s3.files / "runs" / "in-a-bucket"
    summary = outputs.Summary.model_validate_json((results / outputs.SUMMARY).read_bytes())
    assert summary.epochs == 3
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, pathlib.Path] = {}
    exec(code.replace("/team-a/", "/"), names)  # noqa: S102
    assert keras.models.load_model(names["path"]).count_params() > 0
