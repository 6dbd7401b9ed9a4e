"""Train in containers on clusters, from Python. Page: docs/api.md, or `ctrain help api`.

    import ctrain

    run = ctrain.submit(ctrain.Job("./train", nodes=2, parameters={"lr": 0.1}))
    print(run.wait().last("loss"))

Nothing here prints. Errors are subclasses of CtrainError, whose text is one line.
"""

from ctrain_runtime.api.job import Job
from ctrain_runtime.api.run import Plan, Result, Run, attach, plan, submit
from ctrain_runtime.errors import CtrainError

__all__ = ["CtrainError", "Job", "Plan", "Result", "Run", "attach", "plan", "submit"]
