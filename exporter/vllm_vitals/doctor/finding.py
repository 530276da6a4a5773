"""One line of the doctor's report."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what is wrong with it, and what to do. ``mend`` is empty where all is well."""

    where: str
    what: str
    mend: str = ""

    @property
    def fault(self) -> bool:
        """Whether there is something to do."""
        return bool(self.mend)

    def __str__(self) -> str:
        if not self.fault:
            return f"ok     {self.where}: {self.what}"
        return f"FAULT  {self.where}: {self.what}. Next: {self.mend}."
