"""Which trainings an experiment needs, and what validation selects."""

from helpers.made_up_runs import MACC, jobs_of, made_up, train
from macc import data, experiments
from macc.experiments.ledger import open_ledger


class TestSelection:
    def test_ties_go_to_the_smaller_weight_then_the_smaller_dropout(self, tmp_path):
        ledger = made_up(tmp_path, methods=[MACC])
        for job in jobs_of(ledger, "M"):
            point = dict(job.point)
            train(
                ledger, job, accuracy=0.8 if point == {"weight of MACC": 1, "head.p": 0.2} else 0.9, nll=1.0
            )
        dataset, method = ledger.catalog.datasets[0], ledger.experiment.methods[0]

        assert ledger.chosen(dataset, method, "val_accuracy") == {"weight of MACC": 1, "head.p": 0.5}
        assert ledger.chosen(dataset, method, "val_nll") == {"weight of MACC": 1, "head.p": 0.2}

    def test_the_order_of_the_grid_does_not_decide(self, tmp_path):
        turned = {"name": "M", "loss": "CrossEntropy + {10,1}*MACC", "set": {"head.p": "{0.5,0.2}"}}
        ledger = made_up(tmp_path, methods=[turned])
        for job in jobs_of(ledger, "M"):
            train(ledger, job)

        chosen = ledger.chosen(ledger.catalog.datasets[0], ledger.experiment.methods[0], "val_accuracy")
        assert chosen == {"weight of MACC": 1, "head.p": 0.2}

    def test_nothing_is_selected_before_every_point_is_done(self, tmp_path):
        ledger = made_up(tmp_path, methods=[MACC])
        dataset, method = ledger.catalog.datasets[0], ledger.experiment.methods[0]
        *most, last = jobs_of(ledger, "M")
        for job in most:
            train(ledger, job)

        assert ledger.chosen(dataset, method, "val_accuracy") is None
        assert ledger.open_points(dataset, method) == [last]
        assert ledger.open_repeats(dataset, method) == []
        ledger.failed[last] = "it diverged"
        assert ledger.chosen(dataset, method, "val_accuracy") is not None

    def test_selected_points_are_repeated_with_the_other_seeds(self, tmp_path):
        ledger = made_up(tmp_path, methods=[MACC], seeds=3)
        for job, nll in zip(jobs_of(ledger, "M"), (0.5, 0.4, 0.3, 0.2), strict=True):
            train(ledger, job, accuracy=0.9, nll=nll)
        open_now = ledger.open_repeats(ledger.catalog.datasets[0], ledger.experiment.methods[0])

        assert {job.seed for job in open_now} == {1, 2}
        assert len(open_now) == 4  # two rules choose two points
        assert ledger.experiment.trainings() == 4 + 3 * 2  # there are three rules

    def test_an_experiment_names_its_rules(self, tmp_path):
        """The first is trained; the last epoch is another folder only where it is another epoch."""
        ledger = made_up(tmp_path, methods=["CrossEntropy"], rules=["val_refinement", "last"], seeds=1)
        (dataset,), (method,) = ledger.catalog.datasets, ledger.experiment.methods
        (job,) = jobs_of(ledger, "CrossEntropy")
        run = train(ledger, job)
        assert ledger.recipe(job).selection == "val_refinement"
        assert ledger.chosen_runs(dataset, method, "last") == [job]

        row = (run.path / "history.jsonl").read_text()
        later = row.replace('"epoch": 1', '"epoch": 2').replace('refinement": 0.3', 'refinement": 0.4')
        (run.path / "history.jsonl").write_text(row + later)
        ledger = open_ledger(ledger.experiment, ledger.out, None)
        (last,) = ledger.chosen_runs(dataset, method, "last")
        assert ledger.chosen_runs(dataset, method, "val_refinement") == [job]
        assert (last.rule, ledger.recipe(last).selection) == ("last", "last")

    def test_seeds_may_be_others_than_before(self, tmp_path):
        ledger = made_up(tmp_path, methods=[MACC, "CrossEntropy"], seeds=2, first_seed=5)
        (dataset,) = ledger.catalog.datasets
        searched, plain = (
            ledger.open_points(dataset, ledger.experiment.method(m)) for m in ("M", "CrossEntropy")
        )
        assert {job.seed for job in searched} == {5}
        assert [job.seed for job in plain] == [5, 6]

    def test_all_seeds_can_take_part(self, tmp_path):
        ledger = made_up(tmp_path, methods=[MACC], grid_seeds="all")
        best = {"weight of MACC": 10, "head.p": 0.2}
        for job in jobs_of(ledger, "M", seeds=(0, 1)):
            lucky = dict(job.point) != best and job.seed == 0
            train(ledger, job, accuracy=0.95 if lucky else 0.93 if dict(job.point) == best else 0.8)

        assert ledger.chosen(ledger.catalog.datasets[0], ledger.experiment.methods[0], "val_accuracy") == best

    def test_the_control_takes_the_selected_dropout_and_the_schedule(self, tmp_path):
        steps = {"schedule": {"name": "multistep", "milestones": [2, 4]}}
        ledger = made_up(
            tmp_path,
            methods=[MACC, {"name": "C", "loss": "CrossEntropy", "p_of": "M"}, "CrossEntropy"],
            set={**steps, "epochs": 6},
        )
        dataset, control = ledger.catalog.datasets[0], ledger.experiment.method("C")
        assert not ledger.ready(dataset, control)
        for job in jobs_of(ledger, "M"):
            train(ledger, job, accuracy=0.99 if dict(job.point)["head.p"] == 0.5 else 0.9)
        recipe = ledger.recipe(jobs_of(ledger, "C")[0])

        assert (recipe.head.p, recipe.head.samples, recipe.schedule.last_factor) == (0.5, 1, 0.02)
        assert ledger.recipe(jobs_of(ledger, "CrossEntropy")[0]).schedule.last_factor == 0.1


def test_tables_share_runs(tmp_path, monkeypatch):
    """FL+MACC of tables 1, 2, 3 and 5 is the same recipe at every point; the last is no other
    hash.
    """
    monkeypatch.setattr(data, "load", lambda name, **_: data.digits())
    found = []
    for name in ("table1", "table2", "table3", "table5"):
        experiment = experiments.load(name, datasets=["CIFAR10"])
        row = experiment.datasets[0].model_copy(update={"tests": {"test": ["test"]}})
        ledger = open_ledger(experiment.model_copy(update={"datasets": [row]}), tmp_path, None)
        dataset, method = ledger.catalog.datasets[0], experiment.method("FL+MACC")
        found.append(
            {ledger.run(ledger.job(dataset, method, p, 0)).path for p in ledger.points(dataset, method)}
        )

    assert len(found[0]) == 54
    assert found[0] == found[1] == found[2] == found[3]


def test_settings_keep_their_types(tmp_path):
    ledger = made_up(
        tmp_path, methods=[{"name": "M", "loss": "CrossEntropy", "set": {"optimiser.lr": 1e-05}}]
    )
    assert ledger.recipe(jobs_of(ledger, "M")[0]).optimiser.lr == 1e-05
