"""Runs of Weights & Biases, by its library (docs.wandb.ai, Python SDK: init, Run.define_metric, Run.log)."""

from __future__ import annotations

from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.export import facts
from ctrain_runtime.report.series import measures
from ctrain_runtime.run.record import Record


def export(path: Path, record: Record, where: str) -> tuple[str, int]:
    """Make a run of the run in the directory `path`. `where` is the project, "" for that of the job. Returns its place,
    and how many values it has. Raises CtrainError, also if it is there already."""
    code = facts.ended(record, "W&B")
    with facts.errors_of("wandb"):
        import wandb

        made = wandb.init(
            project=where or record.job or "ctrain",
            name=record.run,
            id=facts.identity(record),
            resume="never",
            config={**record.parameters, "ctrain": facts.tags(record)},
            settings=wandb.Settings(console="off", disable_git=True, save_code=False),  # they are of this command
        )
        # W&B takes no step that is before its last one, as after a restart: the step is a measure, which curves go by.
        made.define_metric("step")
        made.define_metric("*", step_metric="step")
        count = 0
        for each in measures(path / run_files.METRICS):
            made.log({**each.values, "step": each.step})
            count += len(each.values)
        made.finish(exit_code=code)
    return str(made.url or made.id), count
