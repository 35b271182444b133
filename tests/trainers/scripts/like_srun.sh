# What srun does on one node, without its killing: like_srun.sh TASKS JOB COMMAND...
# Starts every task with Slurm's variables, waits for all, and fails if one did.
tasks=$1 job=$2
shift 2
export SLURM_NTASKS=$tasks SLURM_TASKS_PER_NODE=$tasks SLURM_NODEID=0 SLURM_JOB_ID=$job SLURM_JOB_NODELIST=localhost
pids=()
for ((task = 0; task < tasks; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit "$code"
