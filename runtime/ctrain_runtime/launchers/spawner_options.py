"""What becomes of the options of programs that start ranks; those that are not listed have no equivalent.

Sources: `torchrun --help` (torch 2.13), its run.py and launch.py, man mpirun (Open MPI 4.1), `mpiexec -help` (MPICH),
`horovodrun --help` and config_parser.py (Horovod 0.28), `deepspeed --help` (0.19), commands/launch.py and
utils/launch.py of accelerate (1.15), cli/launcher.py of Composer, fabric/cli.py of Lightning, cli/launcher of
ColossalAI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NODES, PER_NODE, RANKS = "nodes", "ranks per node", "ranks"  # the value is this number
HOSTS = "hosts"  # as many nodes: a:4,b:4
HOSTFILE = "hostfile"  # of as many nodes as ctrain cannot know
ALONE = "alone"  # a world of this node alone; else as REPLACED
REPLACED = "replaced"  # by hosts, ports and numbers of the plan
IGNORED = "ignored"  # has no effect here, and is named in a note
MODULE, PLAIN = "module", "plain"  # the program is a module; the program is started without Python
ENV, MCA = "env", "mca"  # NAME[=VALUE] for the program; a parameter of Open MPI
NO_LOCAL_RANK = "no local rank"
LAUNCHERS = ("mpi", "gloo")  # the option chooses this launcher
# All other roles are variables: NAME has the option's value, NAME=VALUE this one.


@dataclass(frozen=True)
class Spawner:
    """A program that starts ranks, and its options.

    `table`: the names of its options by role, without leading dashes, with a "=" for each value that follows.
    `local_rank`: words that add the argument by which programs learn their local rank; then, unless it is the last
    argument, how many words precede it.
    `joins`: started on each node with the variables of launcher node, it makes one world.
    `on_each_node`: options, as a shell reads them, by which it does so without knowing these variables.
    """

    launcher: str
    table: Mapping[str, str]
    starts_python: bool = True
    local_rank: tuple[str, ...] = ()
    joins: bool = False
    on_each_node: str = ""

    def role(self, option: str) -> tuple[str, int]:
        """The role of an option, and how many values it takes; "" for one that is not listed."""
        for role, names in self.table.items():
            for name in names.split():
                if name.rstrip("=") == option:
                    return role, name.count("=")
        return "", 0


_MPIRUN = Spawner(
    "mpi",
    {
        RANKS: "np= n= c=",
        PER_NODE: "N= npernode= ppn=",
        HOSTS: "H= host= hosts=",
        HOSTFILE: "hostfile= default-hostfile= machinefile= f=",
        REPLACED: "bind-to= bootstrap= bind-to-core"
        " bind-to-socket allow-run-as-root oversubscribe nooversubscribe genvall noprefix",
        IGNORED: "map-by= rank-by= output-filename= timeout= stdin= prefix= report-bindings tag-output timestamp-output"
        " display-map display-allocation v verbose q quiet l bynode byslot bycore merge-stderr-to-stdout",
        ENV: "x= env== genv==",
        MCA: "mca== gmca==",
    },
    starts_python=False,
)
_TORCHRUN = {
    NODES: "nnodes=",
    PER_NODE: "nproc-per-node=",
    MODULE: "m module",
    PLAIN: "no-python",
    ALONE: "standalone",
    REPLACED: "node-rank= master-addr= master-port= local-addr= rdzv-backend= rdzv-conf= rdzv-endpoint= rdzv-id="
    " run-path",
    IGNORED: "max-restarts= monitor-interval= start-method= event-log-handler= role= log-dir= logdir= logs-specs="
    " r= redirects= t= tee= local-ranks-filter= duplicate-stdout-filters= duplicate-stderr-filters= numa-binding="
    " signals-to-handle=",
}
# As these programs start others, which then have it among their arguments: the first of them for torch's, with the
# name that its version has (run.py: --local-rank from 2.0 on), the last one for DeepSpeed's (launcher/launch.py).
_TORCH_LOCAL_RANK = """\
case $(python -c "import importlib.metadata as m; print(m.version('torch'))" 2>/dev/null) in
  0.* | 1.* | '') option=--local_rank=$LOCAL_RANK ;;
  *) option=--local-rank=$LOCAL_RANK ;;
esac
at=$1
shift
for word; do
  [ "$at" != 0 ] || set -- "$@" "$option"
  at=$((at - 1))
  shift
  set -- "$@" "$word"
done
[ "$at" != 0 ] || set -- "$@" "$option"
exec "$@\""""
_DEEPSPEED_LOCAL_RANK = ("/bin/sh", "-c", 'exec "$@" --local_rank="$LOCAL_RANK"', "deepspeed")
_DEEPSPEED = Spawner(
    "env",
    {
        NODES: "num-nodes=",
        PER_NODE: "num-gpus= num-accelerators=",
        MODULE: "module",
        PLAIN: "no-python",
        NO_LOCAL_RANK: "no-local-rank",
        HOSTFILE: "H= hostfile=",
        REPLACED: "master-port= master-addr= node-rank= launcher= ssh-port= bind-core-list= log-level="
        " no-ssh no-ssh-check force-multi bind-cores-to-rank q quiet",
        IGNORED: "launcher-args= enable-each-rank-log= save-pid",
    },
    local_rank=_DEEPSPEED_LOCAL_RANK,
)
_ACCELERATE = Spawner(
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
    on_each_node="--num_machines $CTRAIN_NODES --num_processes $((CTRAIN_NODES * CTRAIN_RANKS_PER_NODE))"
    " --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT",
)
SPAWNERS = {
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "prun", "mpiexec.hydra"), _MPIRUN),
    **{f"{name}.{kind}": _MPIRUN for name in ("mpirun", "mpiexec") for kind in ("openmpi", "mpich")},
    "torchrun": Spawner("torchrun", _TORCHRUN, joins=True),
    "torch.distributed.launch": Spawner(
        "torchrun",
        {**_TORCHRUN, NO_LOCAL_RANK: "use-env"},
        local_rank=("/bin/sh", "-c", _TORCH_LOCAL_RANK, "torch.distributed.launch"),
        joins=True,
    ),
    "horovodrun": Spawner(
        "auto",
        {
            RANKS: "np= num-proc=",
            HOSTS: "H= hosts=",
            HOSTFILE: "hostfile=",
            REPLACED: "p= ssh-port= i= ssh-identity-file= start-timeout= disable-cache",
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
    **dict.fromkeys(("deepspeed", "deepspeed.pt", "ds"), _DEEPSPEED),
    **dict.fromkeys(("accelerate", "accelerate-launch"), _ACCELERATE),
    "composer": Spawner(
        "env",
        {
            PER_NODE: "n= nproc=",
            MODULE: "m module-mode",
            PLAIN: "c command-mode",
            REPLACED: "world-size= base-rank= node-rank= master-addr= master-port=",
            IGNORED: "stdout= stderr= v verbose",
        },
    ),
}
# Those without a translation, and the line to type for several nodes.
OTHERS = {
    **dict.fromkeys(
        ("fabric", "lightning"),
        "--launcher node -- bash -c '{name} run --num-nodes $CTRAIN_NODES --node-rank $NODE_RANK"
        " --main-address $MASTER_ADDR --main-port $MASTER_PORT ...'",
    ),
    "colossalai": "-- torchrun --nproc-per-node N train.py",  # which is what it starts
}
