"""Replaces a cluster's paths and addresses in the texts of a pod."""

import re
from collections.abc import Mapping


class Substitution:
    """Replaces whole paths and addresses inside texts.

    One pass over the text, the longest match first, so that nothing is replaced twice. A path
    matches with what lies below it, but not inside a longer name: `/output` is found in
    `--dir=/output/job`, not in `/my/output` or `/output2`.
    """

    def __init__(self, replacements: Mapping[str, str]) -> None:
        self._replacements = {key.rstrip("/"): value for key, value in replacements.items()}
        longest_first = sorted(self._replacements, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, longest_first))
        self._pattern = (
            re.compile(rf"(?<![\w.-])(?:{alternatives})(?![\w-]|\.\w)") if alternatives else None
        )

    def apply(self, text: str) -> str:
        """Return the text with every match replaced."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._replacements[match[0]], text)
