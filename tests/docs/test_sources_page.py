"""The commands of docs/how-to/sources.md that make an archive, done as they are written there."""

import pathlib
import subprocess

import pytest

from testing import pages, paths
from tfparallel_trainer import source
from tfparallel_trainer.contract import source_code


@pytest.mark.usefixtures("processes")
def test_the_archive_of_the_page_is_one_that_pods_unpack(tmp_path: pathlib.Path) -> None:
    (tmp_path / "flowers/data").mkdir(parents=True)
    (tmp_path / "flowers/model.py").write_text("one")
    (tmp_path / "flowers/data/labels.txt").write_text("two")
    [console] = pages.blocks(paths.PAGES / "how-to/sources.md", "console")
    tar, split, digest, create = (command.line for command in pages.commands(console))
    for line in (tar, split):
        subprocess.run(line.split(), cwd=tmp_path, check=True)
    done = subprocess.run(digest.split(), cwd=tmp_path, check=True, capture_output=True, text=True)
    mounted = tmp_path / "chunks"
    mounted.mkdir()
    for number, chunk in enumerate(sorted(tmp_path.glob("chunk.*"))):
        chunk.rename(mounted / source_code.chunk_file(number))
    assert source.unpack(mounted, done.stdout.split()[0], tmp_path / "source") == 2
    assert (tmp_path / "source/model.py").read_text() == "one"
    assert (tmp_path / "source/data/labels.txt").read_text() == "two"
    assert create.endswith(f"--from-file={source_code.CHUNK_KEY}=chunk.0000")
