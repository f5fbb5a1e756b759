"""Texts that steer a terminal, and what of them would reach one."""

CLEAR = "\x1b[2J\x1b]0;owned\x07\x9b31m\x90q\x9c"
"""Clears the screen, sets a title, colors; as 7-bit and as 8-bit sequences."""

TURNED = "\u202egpj\u2066\u200f\u200b\u2028\x85"
"""Turns the order, hides, breaks the line."""

HOSTILE = f"{CLEAR}{TURNED}\r\x08\x7f\x00[bold][/nonsense][link=http://x]\n\tx"


def steering(text: str) -> set[str]:
    """The characters of a text that a terminal would not just show."""
    return {c for c in text if not c.isprintable() and c not in "\n\t"}
