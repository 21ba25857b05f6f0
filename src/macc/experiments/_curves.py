"""The test split after every epoch, for the paper's figures 2 and 6: looked at, never selected by."""

from typing import Any

from macc.experiments import _measure
from macc.experiments._runs import Plan


def curves(plan: Plan) -> list[dict[str, Any]]:
    """SCE, ECE and accuracy on the test split after each epoch of every selected run."""
    rows = []
    for case in plan.cases:
        for method in plan.trained(case):
            for job in plan.chosen_runs(case, method, "val_accuracy"):
                run = plan.run(job)
                if not run.finished:
                    continue
                for row in run.history:
                    found = _measure.read(run, f"epochs/test-{row['epoch']}")
                    values = _measure.values(found, ["sce", "ece", "accuracy"])
                    rows.append(
                        {
                            "dataset": case.name,
                            "method": method.title,
                            "seed": job.seed,
                            "epoch": row["epoch"],
                            **values,
                        }
                    )
    return rows
