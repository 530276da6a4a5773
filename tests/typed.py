"""A command as a user types it, run in this process: the exit code, and what stood on either stream."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from vllm_vitals.cli.main import main


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams."""
        return self.stdout + self.stderr


def typed(*arguments: object) -> Done:
    """Run ``vllm-vitals`` with these arguments."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: object = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Done(code if isinstance(code, int) else 0, *texts)
