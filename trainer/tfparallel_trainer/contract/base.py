"""The one configuration of every model that crosses a boundary."""

import pydantic
from pydantic import alias_generators


class Model(pydantic.BaseModel):
    """A frozen value: snake_case in Python, camelCase in YAML and JSON, unknown fields refused."""

    model_config = pydantic.ConfigDict(
        alias_generator=alias_generators.to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )
