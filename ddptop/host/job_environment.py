"""What the environment says about a job that was not started by torchrun: Slurm, MPI, Kubernetes, by hand."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ddptop.host.addresses import stays_here
from ddptop.host.collector_start import run_id_of
from ddptop.host.processes import process_start


def shared_run_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """The id of the run that this launcher shares with others, the same for those of one host.

    None where it shares none: it was started once for all ranks, by hand or in a script.
    """
    parent = os.getppid()
    # By pid and start: job ids are missing by hand and in scripts, and pids come again.
    started_by = (parent, process_start(parent))
    if "SLURM_PROCID" in environment:
        tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS")
        # A single task: the launcher starts all ranks of its host itself.
        if _parse_count(tasks) < 2:
            return None
        job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
        if job and step:
            # With the restart count: a requeued job is another run.
            return run_id_of("slurm", job, step, environment.get("SLURM_RESTART_COUNT", ""))
        return run_id_of("tasks", job, *started_by)
    if _parse_count(environment.get("OMPI_COMM_WORLD_SIZE")) > 1:
        job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid") or ""
        return run_id_of("mpi", job) if job else run_id_of("mpi", *started_by)
    # By hand, once for each rank: what started them, and the store, are what they have in common.
    store = environment.get("MASTER_ADDR")
    if store and "RANK" in environment and spans_hosts(store, environment):
        return run_id_of("ranks", store, environment.get("MASTER_PORT", ""), *started_by)
    return None


def spans_hosts(store: str | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a job may have ranks on several hosts, which are to be one run.

    `store`: host name or address of its store; None: not known yet.
    """
    if environment.get("DDPTOP_HOSTS") == "off" or (store and stays_here(store)):
        return False
    # Slurm knows the number of hosts, and the sizes below need not be looked at.
    nodes = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES")
    if nodes:
        return nodes != "1"
    for ranks, local_ranks in (
        ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ):
        if ranks in environment:
            return environment[ranks] not in ("1", environment.get(local_ranks))
    # Nothing is said about it: with a store in the network other hosts may come.
    return bool(store)


def _parse_count(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
