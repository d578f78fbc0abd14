"""What a launcher or a scheduler tells a run: torchrun, accelerate launch or MPI by the environment, and signals."""

import os
import signal

from informin.errors import UsageError

RANKS = (
    "RANK LOCAL_RANK TORCHELASTIC_RESTART_COUNT PMI_RANK MPI_LOCALRANKID OMPI_COMM_WORLD_RANK "
    "OMPI_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_RANK MV2_COMM_WORLD_LOCAL_RANK"
).split()
SIZES = (
    "WORLD_SIZE LOCAL_WORLD_SIZE MASTER_PORT PMI_SIZE MPI_LOCALNRANKS OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE "
    "MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_SIZE"
).split()

LAUNCH = "Start several processes with accelerate launch or torchrun, or unset it."

# Job schedulers send SIGUSR1 or SIGUSR2 before the time limit, such as SLURM with `--signal=USR1@300`.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


def check_launcher() -> None:
    """Remove variables without a value, as from the template of a container, which torch and accelerate cannot read.

    Raises:
        UsageError: One of them is not a whole number, or a size below 1. Or there are several processes, and no address
            at which they meet.
    """
    for name in (*RANKS, *SIZES):
        value = os.environ.get(name)
        if value is None:
            continue
        if not value.strip():
            del os.environ[name]
            continue
        least = 1 if name in SIZES else -1  # accelerate reads a rank of -1 as none
        try:
            fits = int(value) >= least
        except ValueError:
            fits = False
        if not fits:
            raise UsageError(
                f"The environment variable {name} is {value!r:.40}",
                needed=f"a whole number, {least} or more",
                fix=LAUNCH,
            )
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not os.environ.get("MASTER_ADDR"):
        raise UsageError(
            f"The environment variable WORLD_SIZE is {os.environ['WORLD_SIZE']}, and MASTER_ADDR is not set",
            needed="the address of the first process",
            fix=LAUNCH,
        )
