"""A job as programs describe it: the options of `ctrain run` as a frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ctrain_runtime.plan.options import Options


@dataclass(frozen=True)
class Job(Options):
    """What is to run, and where: each option of `ctrain run` is a field."""

    def with_parameters(self, **parameters: object) -> Job:
        """The same job with other values of these parameters, as for each trial of a search."""
        return replace(self, parameters={**self.parameters, **parameters})
