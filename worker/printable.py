"""What somebody sent, on a terminal or in a log."""


def printable(text: str) -> str:
    """In one line and with nothing that steers a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
