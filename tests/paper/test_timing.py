"""Epochs timed with the moments computed in each way."""

from macc import experiments, paper


def test_every_way_is_timed_and_written(tmp_path):
    experiment = experiments.Experiment(
        name="timing",
        title="Timing",
        kind="timing",
        datasets="digits",
        set={"subset.train": 64},
        methods=["CrossEntropy + MACC"],
        passes=[2],
        scale="smoke",
    )
    result = paper.time_epochs(experiment, out=tmp_path)

    assert [(row["moments"], row["masks"]) for row in result.timings] == [
        ("task loss alone", "–"),
        ("closed form", "–"),
        ("efficient", 2),
        ("conventional", 2),
    ]
    assert experiments.load_result(tmp_path / "experiments" / "timing-smoke").timings == result.timings
    assert "seconds an epoch" in experiments.render(result, "text")
