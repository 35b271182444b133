"""What a script may do after DDP that plain torch allows, and an end with a thread of ours still at work."""

import gc
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model: nn.Module) -> None:
    for _ in range(3):
        model(torch.ones(2, 30)).sum().backward()


def main() -> None:
    dist.init_process_group("gloo")
    group = dist.new_group([0])
    other = DDP(nn.Linear(30, 30), process_group=group)
    train(other)
    dist.destroy_process_group(group)

    net = nn.Linear(30, 3)
    model = DDP(net)
    train(model)

    from ddptop.training.attach import current_session
    from ddptop.training.evidence.reporter import EvidenceDraft
    from ddptop.training.guard import guard

    session = current_session()
    assert session is not None
    session.request_description()
    train(model)
    print(guard.count, guard.first)

    del model, session
    gc.collect()
    torch.__future__.set_swap_module_params_on_conversion(True)
    net.double()

    begun = threading.Event()

    def gather() -> None:
        while True:
            EvidenceDraft(threading.main_thread().ident or 0).gather_evidence()
            begun.set()

    threading.Thread(target=gather, name="ddptop-evidence", daemon=True).start()
    begun.wait()


if __name__ == "__main__":
    main()
