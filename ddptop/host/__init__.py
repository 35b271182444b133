"""One machine: folders of runs, discovery, processes and how they exited, GPUs, and NCCL's own service."""
