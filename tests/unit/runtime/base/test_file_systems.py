from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.base import file_systems
from ctrain_runtime.base.file_systems import Mount, mount_of

# As kernels write them: of Debian 12, of Lustre 2.15 and NFS clients.
TABLE = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard
30 22 0:26 / /tmp rw,nosuid shared:2 - tmpfs tmpfs rw,size=4g
40 22 0:40 / /scratch rw shared:9 - lustre 10.0.0.1@o2ib:/fs rw,checksum,flock,user_xattr,lruresize
41 40 0:41 / /scratch/old rw - lustre 10.0.0.2@tcp:/old rw,localflock,lazystatfs
42 22 0:42 / /lustre2 rw - lustre 10.0.0.3@tcp:/two rw,lazystatfs
43 22 0:43 / /home rw - nfs4 server:/home rw,vers=4.2,local_lock=none,addr=10.0.0.4
44 22 0:44 / /apps rw - nfs server:/apps rw,vers=3,nolock,local_lock=all,addr=10.0.0.4
45 22 0:45 / /data/a\040b rw - gpfs gpfs0 rw,relatime
46 22 0:46 / /over rw - ext4 /dev/sdb rw
47 22 0:47 / /over rw - beegfs beegfs_nodev rw,cfgFile=/etc/beegfs/beegfs-client.conf
"""


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text(TABLE.lstrip())
    monkeypatch.setattr(file_systems, "_TABLE", tmp_path / "mountinfo")


@pytest.mark.parametrize(
    ("path", "kind", "everywhere"),
    [
        ("/nowhere/x", "ext4", True),
        ("/scratchpad", "ext4", True),
        ("/tmp/x", "tmpfs", True),  # noqa: S108  # a mount point
        ("/scratch", "lustre", True),
        ("/scratch/older", "lustre", True),
        ("/scratch/old/x", "lustre", False),
        ("/lustre2/x", "lustre", False),
        ("/home/kim", "nfs4", True),
        ("/apps/ctrain", "nfs", False),
        ("/data/a b/store", "gpfs", False),
        ("/over/x", "beegfs", False),
    ],
)
def test_whether_locks_reach_every_machine(path: str, kind: str, everywhere: bool) -> None:
    mount = mount_of(Path(path))
    assert (mount.kind, mount.has_cluster_locks) == (kind, everywhere)


def test_the_kernels_own_table_has_this_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert mount_of(tmp_path) != Mount("unknown", frozenset())


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("/scratch", ["/scratch/old"]),
        ("/", ["/apps", "/data/a b", "/home", "/lustre2", "/over", "/scratch", "/scratch/old", "/tmp"]),  # noqa: S108  # mount points
        ("/home", []),
        ("/hom", []),
    ],
)
def test_the_mounts_below_a_directory(path: str, below: list[str]) -> None:
    assert file_systems.points_below(Path(path)) == below


@pytest.mark.parametrize(
    ("path", "hides"),
    [
        *(("/nowhere/x", False), ("/scratch/old/x", False), ("/data/a b/x", False)),
        *(("/home/kim", True), ("/apps/x", True), ("/over/x", True)),
    ],
)
def test_whether_what_others_wrote_may_not_be_visible_yet(path: str, hides: bool) -> None:
    assert mount_of(Path(path)).has_caches is hides
