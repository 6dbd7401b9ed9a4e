"""What becomes of the options of programs that start ranks; those that are not listed have no equivalent.

Sources: `torchrun --help` (torch 2.13), man mpirun (Open MPI 4.1), `mpiexec -help` (MPICH), `horovodrun --help` and
config_parser.py (Horovod 0.28), `deepspeed --help` (0.19), commands/launch.py and utils/launch.py of accelerate (1.15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NODES, PER_NODE, RANKS = "nodes", "ranks per node", "ranks"  # the value is this number
HOSTS = "hosts"  # as many nodes: a:4,b:4
REPLACED = "replaced"  # by hosts, ports and numbers of the plan
IGNORED = "ignored"  # has no effect here, and is named in a note
MODULE, PLAIN = "module", "plain"  # the program is a module; the program is started without Python
ENV, MCA = "env", "mca"  # NAME[=VALUE] for the program; a parameter of Open MPI
NO_LOCAL_RANK = "no local rank"
LAUNCHERS = ("mpi", "gloo")  # the option chooses this launcher
# All other roles are variables: NAME has the option's value, NAME=VALUE this one.


@dataclass(frozen=True)
class Spawner:
    """A program that starts ranks. `table` has the names of its options by their role, without leading dashes, and with
    a "=" for each value that follows; `others` is the role of those that are not listed, "" for none."""

    launcher: str
    table: Mapping[str, str]
    starts_python: bool = True
    passes_local_rank: bool = False
    others: str = ""

    def role(self, option: str) -> tuple[str, int]:
        """The role of an option, and how many values it takes."""
        for role, names in self.table.items():
            for name in names.split():
                if name.rstrip("=") == option:
                    return role, name.count("=")
        return self.others, 1


_MPIRUN = Spawner(
    "mpi",
    {
        RANKS: "np= n= c=",
        PER_NODE: "N= npernode= ppn=",
        HOSTS: "H= host= hosts=",
        REPLACED: "hostfile= default-hostfile= machinefile= f= bind-to= bootstrap= bind-to-core"
        " bind-to-socket allow-run-as-root oversubscribe nooversubscribe genvall noprefix",
        IGNORED: "map-by= rank-by= output-filename= timeout= stdin= prefix= report-bindings tag-output timestamp-output"
        " display-map display-allocation v verbose q quiet l bynode byslot bycore merge-stderr-to-stdout",
        ENV: "x= env== genv==",
        MCA: "mca== gmca==",
    },
    starts_python=False,
)
SPAWNERS = {
    "mpirun": _MPIRUN,
    "mpiexec": _MPIRUN,
    "torchrun": Spawner(
        "torchrun",
        {
            NODES: "nnodes=",
            PER_NODE: "nproc-per-node=",
            MODULE: "m module",
            PLAIN: "no-python",
            REPLACED: "node-rank= master-addr= master-port= rdzv-backend= rdzv-conf= rdzv-endpoint= rdzv-id= standalone"
            " run-path use-env",
        },
        others=IGNORED,
    ),
    "horovodrun": Spawner(
        "auto",
        {
            RANKS: "np= num-proc=",
            HOSTS: "H= hosts=",
            REPLACED: "hostfile= p= ssh-port= i= ssh-identity-file= start-timeout= disable-cache",
            IGNORED: "output-filename= verbose prefix-timestamp prefix-output-with-timestamp",
            "mpi": "mpi",
            "gloo": "gloo",
            "HOROVOD_CYCLE_TIME": "cycle-time-ms=",
            "HOROVOD_CACHE_CAPACITY": "cache-capacity=",
            "HOROVOD_TIMELINE": "timeline-filename=",
            "HOROVOD_LOG_LEVEL": "log-level=",
            "HOROVOD_NUM_NCCL_STREAMS": "num-nccl-streams=",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "gloo-timeout-seconds=",
            "HOROVOD_AUTOTUNE=1": "autotune",
            "HOROVOD_HIERARCHICAL_ALLREDUCE=1": "hierarchical-allreduce",
            "HOROVOD_HIERARCHICAL_ALLGATHER=1": "hierarchical-allgather",
        },
        starts_python=False,
    ),
    "deepspeed": Spawner(
        "env",
        {
            NODES: "num-nodes=",
            PER_NODE: "num-gpus= num-accelerators=",
            MODULE: "module",
            PLAIN: "no-python",
            NO_LOCAL_RANK: "no-local-rank",
            REPLACED: "H= hostfile= master-port= master-addr= node-rank= launcher= ssh-port= bind-core-list= log-level="
            " no-ssh no-ssh-check force-multi bind-cores-to-rank q quiet",
            IGNORED: "launcher-args= enable-each-rank-log= save-pid",
        },
        passes_local_rank=True,
    ),
    "accelerate": Spawner(
        "env",
        {
            RANKS: "num-processes=",
            NODES: "num-machines=",
            MODULE: "m module",
            PLAIN: "no-python",
            REPLACED: "machine-rank= main-process-ip= main-process-port= rdzv-backend= rdzv-conf= multi-gpu"
            " same-network q quiet",
            IGNORED: "max-restarts= monitor-interval= t= tee= log-dir= role=",
            "ACCELERATE_MIXED_PRECISION": "mixed-precision=",
            "ACCELERATE_DYNAMO_BACKEND": "dynamo-backend=",
            "OMP_NUM_THREADS": "num-cpu-threads-per-process=",
            "ACCELERATE_USE_CPU=true": "cpu",
            "ACCELERATE_DEBUG_MODE=true": "debug",
            "ACCELERATE_CPU_AFFINITY=1": "enable-cpu-affinity",
        },
    ),
}
