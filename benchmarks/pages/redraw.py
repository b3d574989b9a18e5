"""`python -m benchmarks.pages.redraw`: redraws the pictures of measured pages.

It measures nothing: `comparisons`, `split_costs` and `report_picture` leave what they measure in
the folder `measured`.
"""

import pathlib
from collections.abc import Mapping

import pydantic

from benchmarks.pages import report_picture
from testing import paths
from tfparallel.compare import comparison_pictures as comparison
from tfparallel.compare import comparison_report
from tfparallel.drawing import svg
from tfparallel.planning import plan_picture as planning
from tfparallel_trainer.contract import plan

IMAGES = paths.PAGES / "images"
MEASURED = pathlib.Path(__file__).parent / "measured"

_COMPARED, _PIPELINE = "compare-", "pipeline-"
_PICTURED = pydantic.TypeAdapter(comparison_report.Pictured)


def image_of_comparison(example: str, picture: str) -> pathlib.Path:
    """Return the file of a picture of a comparison."""
    return IMAGES / f"{_COMPARED}{example}-{picture}"


def read_comparison(example: str) -> comparison_report.Pictured:
    """Return the numbers of a comparison."""
    return _PICTURED.validate_json((MEASURED / f"{_COMPARED}{example}.json").read_bytes())


def save_comparison(example: str, document: bytes) -> None:
    """Keep of the report of a comparison what its pictures show."""
    numbers = _PICTURED.dump_json(_PICTURED.validate_json(document), indent=1)
    (MEASURED / f"{_COMPARED}{example}.json").write_bytes(numbers + b"\n")


def save_pipeline(example: str, pipeline: plan.Pipeline) -> None:
    """Keep how the stages of an example worked."""
    numbers = pipeline.model_dump_json(by_alias=True)
    (MEASURED / f"{_PIPELINE}{example}.json").write_text(f"{numbers}\n", encoding="utf-8")


def draw() -> Mapping[pathlib.Path, svg.Picture]:
    """Draw everything; return the pictures by their files in the documentation."""
    drawn = {}
    for file in MEASURED.glob(f"{_COMPARED}*.json"):
        example = file.stem.removeprefix(_COMPARED)
        for name, picture in comparison.pictures(read_comparison(example)).items():
            drawn[image_of_comparison(example, name)] = picture
    for file in MEASURED.glob(f"{_PIPELINE}*.json"):
        pipeline = plan.Pipeline.model_validate_json(file.read_bytes())
        drawn[IMAGES / f"{file.stem}.svg"] = planning.picture_of_run(pipeline)
    drawn[report_picture.IMAGE] = report_picture.picture()
    return drawn


def main() -> None:
    """Write all pictures."""
    for file, picture in draw().items():
        file.write_text(picture.document, encoding="utf-8")
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
