"""Access to Slurm: one interface, and its implementation on Slurm's commands."""

from slurm_plugin.cluster.commands import CommandCluster
from slurm_plugin.cluster.interface import (
    ClusterError,
    ClusterUnreachableError,
    Job,
    Partition,
    SlurmCluster,
    Twin,
)

__all__ = [
    "ClusterError",
    "ClusterUnreachableError",
    "CommandCluster",
    "Job",
    "Partition",
    "SlurmCluster",
    "Twin",
]
