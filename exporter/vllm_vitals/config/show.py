"""A value of a file or an option in a message: as a person typed it, and short."""


def show(value: object) -> str:
    """Return a value as a person typed it, short; never more than 60 characters of it."""
    text = {True: "true", False: "false", None: "nothing"}.get(value) if isinstance(value, bool | None) else None
    if text is None:
        text = (
            f'"{value}"'
            if isinstance(value, str)
            else type(value).__name__
            if isinstance(value, dict | list)
            else str(value)
        )
    return text if len(text) <= 60 else text[:57] + "..."
