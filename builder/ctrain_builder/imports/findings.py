"""What an import tells about lines of the imported file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A line that means something else in an image of ctrain, or nothing. `lost`: somebody must act on it."""

    line: int
    text: str  # the line as it was written, in one line
    why: str
    todo: str = ""
    lost: bool = True

    @property
    def advice(self) -> str:
        return f"{self.why}. {self.todo}" if self.todo else self.why
