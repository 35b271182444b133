"""Rank, world size and meeting point from each launcher's environment."""

from __future__ import annotations

import pytest

from ddptop.training.ddp.placement import SLURM_PORTS, Placement

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "1234",
}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "11",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_TASKS_PER_NODE": "4(x2),3",
    "SLURM_JOB_NODELIST": "node[07-09]",
    "SLURM_JOB_ID": "4711",
}


def test_torchruns_variables_are_taken_as_they_are() -> None:
    assert Placement.from_environment(environment=TORCHRUN) == Placement(5, 8, 1, 4, "head", 1234, "torchrun")
    assert Placement.from_environment(environment=TORCHRUN).launcher_variables() == TORCHRUN


def test_torchrun_inside_a_slurm_job_goes_first() -> None:
    assert Placement.from_environment(environment=SLURM | TORCHRUN).launcher == "torchrun"


def test_a_slurm_task_meets_on_the_first_host_of_its_job() -> None:
    placement = Placement.from_environment(environment=SLURM)
    assert (placement.rank, placement.world_size, placement.local_rank, placement.local_world_size) == (
        9,
        11,
        1,
        3,
    )
    assert placement.master_addr == "node07"
    assert placement.master_port in SLURM_PORTS
    same_job = SLURM | {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    assert Placement.from_environment(environment=same_job).master_port == placement.master_port
    assert Placement.from_environment(environment=same_job).local_world_size == 4
    assert (
        Placement.from_environment(environment=SLURM | {"SLURM_JOB_ID": "4712"}).master_port
        != placement.master_port
    )
    assert (
        Placement.from_environment(environment=SLURM | {"SLURM_STEP_ID": "1"}).master_port
        != placement.master_port
    )
    assert (
        Placement.from_environment(environment=SLURM | {"SLURM_STEP_NODELIST": "node08"}).master_addr
        == "node08"
    )
    told = Placement.from_environment(environment=SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "99"})
    assert (told.master_addr, told.master_port) == ("10.0.0.1", 99)


def test_explicit_ranks_meet_on_this_machine_unless_told_otherwise() -> None:
    assert Placement.from_environment(1, 2, {}) == Placement(1, 2, 1, 2, "127.0.0.1", 29500, "explicit")
    assert Placement.from_environment(1, 2, TORCHRUN).master_addr == "head"
    assert Placement.from_environment(1, 2, TORCHRUN).local_rank == 1


def test_without_any_launcher_it_is_a_world_of_one() -> None:
    placement = Placement.from_environment(environment={"MASTER_PORT": "1234"})
    assert (placement.rank, placement.world_size, placement.launcher) == (0, 1, "alone")


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_half_set_environment_names_what_is_missing_and_what_is_there(missing: str) -> None:
    half = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(ValueError, match=rf"half set: .*LOCAL_RANK without {missing} \(torchrun"):
        Placement.from_environment(environment=half)


@pytest.mark.parametrize("missing", ["SLURM_NTASKS", "SLURM_LOCALID"])
def test_a_half_set_slurm_task_names_what_is_missing(missing: str) -> None:
    with pytest.raises(ValueError, match=f"without {missing}"):
        Placement.from_environment(
            environment={name: value for name, value in SLURM.items() if name != missing}
        )
    with pytest.raises(ValueError, match="SLURM_JOB_NODELIST"):
        Placement.from_environment(environment={k: v for k, v in SLURM.items() if "NODELIST" not in k})


def test_what_cannot_be_a_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 is not in a world of 2"):
        Placement.from_environment(2, 2, {})
    with pytest.raises(ValueError, match="needs world_size="):
        Placement.from_environment(rank=0, environment={})
    with pytest.raises(ValueError, match="needs rank="):
        Placement.from_environment(world_size=2, environment={})
    with pytest.raises(ValueError, match="WORLD_SIZE must be a whole number, not 'many'"):
        Placement.from_environment(environment=TORCHRUN | {"WORLD_SIZE": "many"})
