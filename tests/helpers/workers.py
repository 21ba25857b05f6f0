"""What the processes of the distributed tests run; a module of its own, so that they can import
it.
"""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import macc
from macc import losses

PENALTIES = (
    "MACC",
    "MDCA",
    "DCA",
    "MMCE",
    "MMCE(weighted=False)",
    "MMCE(legacy=True)",
    "MACC of labels",
    "MDCA of labels",
)
ROWS = 30


def model_and_batch():
    """A network, a batch of which the first columns are the variance's own, and labels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    return model, 2 * torch.randn(ROWS, 8, dtype=torch.float64), torch.randint(0, 4, (ROWS,))


def penalty(text, *, sync=True):
    """Of logits and classes; of labels each class is one, and one more of each row is unknown."""
    name, of_labels, _ = text.partition(" of labels")
    term = losses.parse(f"{'BinaryCrossEntropy' if of_labels else 'CrossEntropy'} + {name}").penalties[0]
    term.penalty.sync = sync
    if not of_labels:
        return term
    return lambda output, y: term(output, torch.eye(4)[y] - torch.eye(4)[(y + 1) % 4], ignore_index=-1)


def shard(rank, world):
    """Uneven parts of the rows: each rank has more than the one before it."""
    cuts = [ROWS * r * (r + 1) // (world * (world + 1)) for r in range(world + 1)]
    return slice(cuts[rank], cuts[rank + 1])


def value_and_gradient(model, text, x, y, *, sync=True):
    model.zero_grad()
    value = penalty(text, sync=sync)(model(x), y)
    value.backward()
    return value.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])


def compiled_value(text, rows):
    """MMCE exchanges the sizes of shards, which breaks its graph; the others are one graph."""
    model, x, y = model_and_batch()
    macc.attach(model, p=0.5, estimator="analytic")
    term = penalty(text)
    compiled = torch.compile(lambda x, y: term(model(x), y), backend="aot_eager", fullgraph=text != "MMCE")
    return compiled(x[rows], y[rows]).detach()


def run(rank, world, address, results):
    """Every batch-statistic penalty on this rank's shard; rank 0 saves what DDP averaged."""
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=world)
    rows = shard(rank, world)
    found = {}
    for text in PENALTIES:
        model, x, y = model_and_batch()
        # The analytic head: without noise, so that one process can be compared with.
        macc.attach(model, p=0.5, estimator="analytic")
        ddp = DistributedDataParallel(model)
        found[text] = value_and_gradient(ddp, text, x[rows], y[rows])
        found[text, "alone"] = value_and_gradient(ddp, text, x[rows], y[rows], sync=False)
    for options in ({"find_unused_parameters": True}, {"static_graph": True}):
        model, x, y = model_and_batch()
        ddp = DistributedDataParallel(macc.attach(model), **options)
        criterion = losses.Focal() + 10 * losses.MACC()
        for _ in range(3):
            ddp.zero_grad()
            output = ddp(x[rows])
            assert isinstance(output, macc.LogitMoments)
            criterion(output, y[rows]).backward()
        found[str(options)] = model[2].weight.grad
    for text in ("MACC", "MMCE"):
        found[text, "compiled"] = compiled_value(text, rows)
    try:
        macc.attach(ddp)
    except ValueError as error:
        found["refusal"] = str(error)
    found["eval"] = macc.moments(ddp, x[rows]).variance
    torch.save(found, f"{results}/{rank}.pt")
    dist.destroy_process_group()
