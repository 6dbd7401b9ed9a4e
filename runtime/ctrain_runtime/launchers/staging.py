"""Files on the nodes' own disks, the image and that of the data set: scripts have them copied there, and tasks use the
copy where there is one."""

from __future__ import annotations

import shlex

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.plan.model import IMAGE_ROOT, DataCopy, LaunchPlan
from ctrain_runtime.plan.task import TaskIdentity
from ctrain_runtime.schedulers.script import library

FILES = (run_files.RELAY,)  # what these scripts need beside them
START_SECONDS = 10  # between the starts of two nodes; besides:
NODES_PER_SECOND = 100  # that a scheduler starts, at least


def scripts(plan: LaunchPlan, identity: TaskIdentity) -> dict[str, str]:
    """The scripts that each node runs, one after the other, before the ranks start; {} for none."""
    made = {}
    if plan.staging.copies:
        made[run_files.STAGE_SCRIPT] = _script(plan, _image(plan), identity)
    if plan.staging.data_copy:
        made[run_files.STAGE_DATA_SCRIPT] = _script(plan, _data(plan.staging.data_copy), identity)
    return made


def _script(plan: LaunchPlan, copied: list[str], identity: TaskIdentity) -> str:
    seconds = START_SECONDS + plan.size.nodes // NODES_PER_SECOND
    return f"""\
#!/bin/bash -p
# For {plan.run}, copies a file to the disk of this node. A node that cannot do that is named, and does without.
trap '' USR1 USR2
{library(plan)}
{identity.bash}
copy_to_disk {quote_argv(copied)} {seconds} {identity.hosts}
"""


def copy_of_image(plan: LaunchPlan) -> list[str]:
    """The line that sets `copy`: to that of the image on this node if there is one."""
    return [f"find_copy {quote_argv(_image(plan))}"] if plan.staging.directory else []


def image(plan: LaunchPlan) -> str:
    """Bash for the file of the image, after copy_of_image."""
    return '"$copy"' if plan.staging.directory else shlex.quote(plan.image.path)


def data(plan: LaunchPlan) -> list[str]:
    """Lines that add the data set to the array `binds`, the copy if this node has one; none if none is planned."""
    if not plan.staging.data_copy:
        return []
    target = shlex.quote(f":{plan.staging.data_copy.mount.target}:{IMAGE_ROOT}ro")
    return [f"find_copy {quote_argv(_data(plan.staging.data_copy))}", f'ct_binds+=("$copy"{target})']


def _image(plan: LaunchPlan) -> list[str]:
    """The file, its size, and the name and parent of its copy, below which users have directories of their own."""
    image = plan.image
    return [image.path, str(image.size), f"{image.digest.partition(':')[2]}.sif", plan.staging.directory]


def _data(copy: DataCopy) -> list[str]:
    """The same for the data set."""
    return [copy.mount.source, str(copy.size), f"{copy.digest.partition(':')[2]}.sqfs", copy.directory]
