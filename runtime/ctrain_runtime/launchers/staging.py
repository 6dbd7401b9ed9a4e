"""Files on the nodes' own disks, the image and that of the data set: scripts have them copied there, and tasks use the
copy where there is one."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.plan.model import IMAGE_ROOT, DataCopy, LaunchPlan
from ctrain_runtime.schedulers.script import TaskIdentity

PROGRAM = Path(__file__).with_name("relay.py")  # read, not imported: it runs by the nodes' own Python
KEEP_DAYS = 7  # after its last use, a copy stays on its node for so long
START_SECONDS = 10  # between the starts of two nodes; besides:
NODES_PER_SECOND = 100  # that a scheduler starts, at least
PYTHONS = "/usr/bin/python3 /usr/libexec/platform-python python3"  # one that is not on the shared file system first


@dataclass(frozen=True)
class _Copied:
    """A file, and its copy below `parent` on a node's own disk."""

    path: str
    size: int
    name: str
    parent: str

    @property
    def bash(self) -> str:
        return f"""\
file={shlex.quote(self.path)}
directory={shlex.quote(self.parent)}/ctrain-images-$UID"""


def scripts(plan: LaunchPlan, identity: TaskIdentity) -> dict[str, str]:
    """The scripts that each node runs, one after the other, before the ranks start; {} for none."""
    made = {}
    if plan.stages_image:
        made[run_files.STAGE_SCRIPT] = _script(plan, _image(plan), identity)
    if plan.data_copy:
        made[run_files.STAGE_DATA_SCRIPT] = _script(plan, _data(plan.data_copy), identity)
    return made


def programs() -> dict[str, str]:
    """What these scripts need beside them."""
    return {run_files.RELAY: PROGRAM.read_text(encoding="utf-8")}


def _script(plan: LaunchPlan, copied: _Copied, identity: TaskIdentity) -> str:
    return f"""\
#!/bin/bash -p
# For {plan.run}, copies a file to the disk of this node. A node that cannot do that is named, and does without.
trap '' USR1 USR2
run={shlex.quote(plan.run_directory)}
{identity.bash}
{copied.bash}
[ "$task" != 0 ] || echo "copying $file to $directory on each node"
if [ -O "$directory" ] && [ ! -L "$directory" ]; then # a copy in use is locked
  find "$directory" -maxdepth 1 -type f -mtime +{KEEP_DAYS} -exec flock -n {{}} rm -f {{}} \\;
fi
mapfile -t hosts < <({identity.hosts})
before='' port=0
[ "$task" = 0 ] || before=${{hosts[task - 1]}}:$MASTER_PORT
((task + 1 >= ${{#hosts[@]}})) || port=$MASTER_PORT
for python in {PYTHONS} ''; do
  ! "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null || break
done
[ "$python" ] || {{
  echo "ctrain: $file not copied to $(uname -n): no Python 3.6 or later there. Ranks there read the shared file" >&2
  exit 1
}}
exec "$python" -I "$run/{run_files.RELAY}" "$file" {copied.size} {shlex.quote(copied.name)} "$directory" \\
  "$run/{run_files.STAGE_KEY}" {START_SECONDS + plan.nodes // NODES_PER_SECOND} "$before" "$port"
"""


def image(plan: LaunchPlan) -> str:
    """Bash that sets `image`: to the copy on this node if there is one."""
    return _use(_image(plan), "image") if plan.staging else f"image={shlex.quote(plan.image.path)}"


def data(plan: LaunchPlan) -> str:
    """Bash that adds the data set to the array `binds`, the copy if this node has one; "" if none is planned."""
    if not plan.data_copy:
        return ""
    target = shlex.quote(f":{plan.data_copy.mount.target}:{IMAGE_ROOT}ro")
    return f'{_use(_data(plan.data_copy), "data")}\nbinds+=("$data"{target})\n'


def _use(copied: _Copied, variable: str) -> str:
    """Bash that sets `variable` to the copy, else to the file. A lock says that it is in use, for as long as what the
    task starts has the file open. After a crash of the node, a copy may be shorter than the file."""
    return f"""\
{copied.bash}
{variable}=$file
copy=$directory/{shlex.quote(copied.name)} # complete: it got this name when its digest was checked
if [ -O "$directory" ] && [ ! -L "$directory" ] && [ "$(stat -c %s "$copy" 2>/dev/null)" = {copied.size} ] &&
  {{ exec {{in_use}}<"$copy"; }} 2>/dev/null && flock -s -n "$in_use"; then
  touch -c "$copy"
  {variable}=$copy
fi"""


def _image(plan: LaunchPlan) -> _Copied:
    image = plan.image
    return _Copied(image.path, image.size, f"{image.digest.partition(':')[2]}.sif", plan.staging)


def _data(copy: DataCopy) -> _Copied:
    return _Copied(copy.mount.source, copy.size, f"{copy.digest.partition(':')[2]}.sqfs", copy.directory)
