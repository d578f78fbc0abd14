"""What torchrun, accelerate launch or MPI say in the environment about the processes of a run."""

import os

from informin.errors import UsageError

RANKS = (
    "RANK LOCAL_RANK TORCHELASTIC_RESTART_COUNT PMI_RANK MPI_LOCALRANKID OMPI_COMM_WORLD_RANK "
    "OMPI_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_RANK MV2_COMM_WORLD_LOCAL_RANK"
).split()
SIZES = (
    "WORLD_SIZE LOCAL_WORLD_SIZE MASTER_PORT PMI_SIZE MPI_LOCALNRANKS OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE "
    "MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_SIZE"
).split()


def check_launcher() -> None:
    """Remove variables without a value, as from the template of a container, which torch and accelerate cannot read.

    Raises:
        UsageError: One of them is not a whole number, or a size below 1.
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
                fix="Start several processes with accelerate launch or torchrun, or unset it.",
            )
