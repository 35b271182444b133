"""What the variables of other launchers say about a job."""

from __future__ import annotations

import pytest

from ddptop.host.job_environment import shared_run_id, spans_hosts


@pytest.mark.parametrize(
    ("store", "variables", "spans"),
    [
        ("10.0.0.1", {"WORLD_SIZE": "4"}, True),
        ("node-a", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, True),
        ("node-a", {"SLURM_NNODES": "2", "SLURM_STEP_NUM_NODES": "2"}, True),
        ("node-a", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, False),
        ("node-a", {"SLURM_NNODES": "2", "SLURM_STEP_NUM_NODES": "1"}, False),
        ("node-a", {"WORLD_SIZE": "1"}, False),
        ("node-a", {"WORLD_SIZE": "4", "DDPTOP_HOSTS": "off"}, False),
        (None, {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, True),
        (None, {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, False),
        (None, {}, False),
        ("localhost", {"WORLD_SIZE": "4"}, False),
        ("127.0.0.1", {}, False),
    ],
)
def test_whether_a_job_may_have_ranks_on_other_hosts(
    store: str | None, variables: dict[str, str], spans: bool
) -> None:
    assert spans_hosts(store, variables) == spans


def test_launchers_of_one_host_share_a_run_and_one_that_was_started_once_shares_none() -> None:
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    mpi = {"OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "job7"}
    pod = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    for job in (slurm, mpi, pod):
        assert shared_run_id(job) == shared_run_id(job) is not None
    assert shared_run_id(slurm) == shared_run_id(slurm | {"SLURM_PROCID": "1"})
    assert shared_run_id(slurm) != shared_run_id(slurm | {"SLURM_STEP_ID": "1"})
    for alone in (
        {},
        slurm | {"SLURM_NTASKS": "1"},
        pod | {"MASTER_ADDR": "127.0.0.1"},
        mpi | {"OMPI_COMM_WORLD_SIZE": "1"},
    ):
        assert shared_run_id(alone) is None
