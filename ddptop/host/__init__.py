"""One machine: folders of runs, processes and how they exited, GPUs, and NCCL's RAS service."""
