"""The image on the nodes' own disks: stage.sh copies it there, and tasks run the copy where there is one."""

from __future__ import annotations

import shlex

from ctrain_runtime.plan.model import LaunchPlan

KEEP_DAYS = 7  # after its last use, a copy stays on its node for so long


def stage_script(plan: LaunchPlan) -> str:
    """The text of stage.sh, which each node runs once. A node that cannot copy is named, and does without."""
    return f"""\
#!/bin/bash -p
# Copies the image of {plan.run} to the disk of this node.
set -o pipefail
{_paths(plan)}
fail() {{ # MESSAGE
  echo "ctrain: image not copied to $(uname -n): $1. Ranks there read $image" >&2
  exit 1
}}
umask 077
mkdir "$directory" 2>/dev/null
if [ ! -d "$directory" ] || [ ! -O "$directory" ] || [ -L "$directory" ]; then fail "cannot create $directory"; fi
exec 7<"$directory" && flock 7 # other runs on this node wait for the copy, and use it
find "$directory" -maxdepth 1 -type f -mtime +{KEEP_DAYS} -delete
[ ! -f "$copy" ] || exec touch "$copy"
trap 'rm -f "$copy.part"' EXIT
trap 'exit 143' TERM
digest=$(tee "$copy.part" <"$image" | sha256sum) || fail "cannot write $copy.part"
[ "${{digest%% *}}" = {_digest(plan)} ] || fail "digest mismatch: $image has sha256:${{digest%% *}}"
mv "$copy.part" "$copy" || fail "cannot write $copy"
"""


def image(plan: LaunchPlan) -> str:
    """Bash that sets `image`: to the copy on this node if there is one."""
    if not plan.staging:
        return f"image={shlex.quote(plan.image.path)}"
    return f"""\
{_paths(plan)}
[ ! -O "$directory" ] || [ -L "$directory" ] || [ ! -f "$copy" ] || image=$copy"""


def _paths(plan: LaunchPlan) -> str:
    return f"""\
image={shlex.quote(plan.image.path)}
directory={shlex.quote(plan.staging)}/ctrain-images-$UID
copy=$directory/{_digest(plan)}.sif # complete: it got this name when its digest was checked"""


def _digest(plan: LaunchPlan) -> str:
    return shlex.quote(plan.image.digest.partition(":")[2])
