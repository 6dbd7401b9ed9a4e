"""The image on the nodes' own disks: stage.sh has it copied there, and tasks run the copy where there is one."""

from __future__ import annotations

import shlex
from pathlib import Path

from ctrain_runtime import layout
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.script import TaskIdentity

PROGRAM = Path(__file__).with_name("relay.py")  # read, not imported: it runs by the nodes' own Python
KEEP_DAYS = 7  # after its last use, a copy stays on its node for so long
START_SECONDS = 10  # between the starts of two nodes; besides:
NODES_PER_SECOND = 100  # that a scheduler starts, at least
PYTHONS = "/usr/bin/python3 /usr/libexec/platform-python python3"  # one that is not on the shared file system first


def scripts(plan: LaunchPlan, identity: TaskIdentity) -> dict[str, str]:
    """stage.sh, which each node runs once, and its program."""
    text = f"""\
#!/bin/bash -p
# Copies the image of {plan.run} to the disk of this node. A node that cannot do that is named, and does without.
trap '' USR1 USR2
run={shlex.quote(plan.run_directory)}
{identity.bash}
{_paths(plan)}
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
  echo "ctrain: image not copied to $(uname -n): no Python 3.6 or later there. Ranks there read $image" >&2
  exit 1
}}
exec "$python" -I "$run/{layout.RELAY}" "$image" {plan.image.size} {_digest(plan)} "$directory" \\
  "$run/{layout.STAGE_KEY}" {START_SECONDS + plan.nodes // NODES_PER_SECOND} "$before" "$port"
"""
    return {layout.STAGE_SCRIPT: text, layout.RELAY: PROGRAM.read_text(encoding="utf-8")}


def image(plan: LaunchPlan) -> str:
    """Bash that sets `image`: to the copy on this node if there is one. A lock says that it is in use, for as long as
    what the task starts has the file open. After a crash of the node, a copy may be shorter than the image."""
    if not plan.staging:
        return f"image={shlex.quote(plan.image.path)}"
    return f"""\
{_paths(plan)}
copy=$directory/{_digest(plan)}.sif # complete: it got this name when its digest was checked
if [ -O "$directory" ] && [ ! -L "$directory" ] && [ "$(stat -c %s "$copy" 2>/dev/null)" = {plan.image.size} ] &&
  {{ exec {{in_use}}<"$copy"; }} 2>/dev/null && flock -s -n "$in_use"; then
  touch -c "$copy"
  image=$copy
fi"""


def _paths(plan: LaunchPlan) -> str:
    return f"""\
image={shlex.quote(plan.image.path)}
directory={shlex.quote(plan.staging)}/ctrain-images-$UID"""


def _digest(plan: LaunchPlan) -> str:
    return shlex.quote(plan.image.digest.partition(":")[2])
