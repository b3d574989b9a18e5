r"""Text of others, made safe to store and to show: without control characters, and bounded.

A control character moves a cursor, ends a line or turns the direction of what follows. So it is
refused where a machine writes (`limits`), and shown as `\x1b` where a person reads.
"""

import re

_LINE_BREAKS = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+ *")

_CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f"  # C0, DEL and C1
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of the text
    r"\u2028\u2029"  # ends of lines and paragraphs
    r"\ud800-\udfff]"  # halves of a pair, which UTF-8 cannot carry
)

_CUT = "..."


def find_control(text: str) -> str | None:
    """Return the first control character of a text as it is shown; None: there is none."""
    match = _CONTROLS.search(text)
    return None if match is None else _shown(match)


def escape(text: str, keep: str = "") -> str:
    """Return a text with its control characters shown, but for those to keep."""
    return _CONTROLS.sub(lambda match: match[0] if match[0] in keep else _shown(match), text)


def shorten(text: str, limit: int) -> str:
    """Return a text as one line without control characters, in so many bytes of UTF-8 at most.

    A limit in characters holds too: none has less than a byte.
    """
    # Cut before it is searched: a text of megabytes costs no more than one that is shown.
    encoded = escape(_LINE_BREAKS.sub(" ", text[: limit + 1])).encode()
    if len(text) <= limit and len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - len(_CUT)].decode(errors="ignore") + _CUT


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
