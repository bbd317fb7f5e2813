"""The variables of torchrun, `accelerate launch`, MPI and operators of clusters, which say that a process is a rank."""

from __future__ import annotations

import getpass
import os

_RANKS = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
}  # fmt: skip
"""What Ray Train sets for each of several workers."""

_SETTINGS = (
    "ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "TORCHELASTIC_",
    "PMI_", "PMIX_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_",
)  # fmt: skip
"""How the names begin of what Ray Train does not set, and accelerate prefers to arguments and to a rank's variables."""


def forget_launcher(*, single: bool = True) -> None:
    """Removes a launcher's variables from this process, which Tutti, not the launcher, makes a rank of a trial or none.

    A pod or an allocation for distributed training sets them for every process. Accelerate would wait for ranks that
    do not exist, or train with another precision and batch than the study file says.

    Args:
        single: whether the process is no rank; one of several workers keeps what Ray Train has set.
    """
    for name in [*os.environ]:
        if name.startswith(_SETTINGS) or (single and name in _RANKS):
            del os.environ[name]


def user_name() -> str:
    """The name of the user who runs this process, or `uid N` in a container whose user has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
