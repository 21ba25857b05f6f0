"""Optuna on an SQLite file, with trainings that are made up; addresses without their passwords."""

from errno import ENOSPC

import pytest
from sqlalchemy import text

from helpers.made_up_runs import MACC, jobs_of, made_up, train
from macc.experiments import search


class TestStudies:
    """Optuna on an SQLite file, with trainings that are made up."""

    @pytest.fixture
    def storage(self, tmp_path):
        storage = search.open_storage(f"sqlite:///{tmp_path / 'study.db'}", tmp_path, heartbeat=1)
        yield storage
        search.close_storage(storage)

    def study(self, tmp_path, storage, **how):
        ledger = made_up(tmp_path, methods=[MACC], search=how)
        return ledger, search.GridStudy(
            ledger, ledger.catalog.datasets[0], ledger.experiment.methods[0], storage, tmp_path
        )

    @staticmethod
    def trainer(ledger, seen):
        def fake(job, on_epoch):
            point = dict(job.point)
            weight, p = point["weight of MACC"], point["head.p"]
            seen.append(job)
            train(ledger, job, accuracy=0.9 + 0.001 * weight, nll=p)
            for epoch in range(1, 4):
                if on_epoch is not None:
                    on_epoch({"epoch": epoch, "val/accuracy": 0.9 if weight == 10 else 0.1})

        return fake

    def test_every_point_is_enqueued_once_and_tried_once(self, tmp_path, storage):
        ledger, study = self.study(tmp_path, storage)
        study.enqueue()
        study.enqueue()
        _, other = self.study(tmp_path, storage)
        other.enqueue()
        seen = []
        while study.work(self.trainer(ledger, seen)):
            pass

        assert sorted(job.point for job in seen) == sorted(job.point for job in jobs_of(ledger, "M"))
        assert study.states() == ["COMPLETE"] * 4
        assert study.done

    def test_tables_whose_making_was_stopped_are_made_again(self, tmp_path):
        from sqlalchemy import event
        from sqlalchemy.engine import Engine

        address = f"sqlite:///{tmp_path / 'study.db'}"

        def stop(connection, cursor, statement, *_):
            if statement.startswith("CREATE UNIQUE INDEX"):
                raise KeyboardInterrupt

        event.listen(Engine, "before_cursor_execute", stop)
        try:
            with pytest.raises(KeyboardInterrupt):
                search.open_storage(address, tmp_path)
        finally:
            event.remove(Engine, "before_cursor_execute", stop)
        storage = search.open_storage(address, tmp_path)
        for _ in range(2):
            self.study(tmp_path, storage)[1].enqueue()

        assert len(storage.get_all_studies()) == 1
        search.close_storage(storage)

    def test_a_full_disk_leaves_no_tables_and_says_so(self, tmp_path, monkeypatch):
        def refuse(*_):
            raise OSError(ENOSPC, "No space left on device")

        monkeypatch.setattr("macc.io.writing.check_space", refuse)
        with pytest.raises(ValueError, match="is full .* the same command again"):
            search.open_storage(f"sqlite:///{tmp_path / 'study.db'}", tmp_path)

        assert not (tmp_path / "study.db").exists()

    def test_a_trial_that_another_worker_finished_is_no_crash(self, tmp_path, storage):
        ledger, study = self.study(tmp_path, storage)
        study.enqueue()
        fake = self.trainer(ledger, [])

        def overtaken(job, on_epoch):
            fake(job, on_epoch)
            (running,) = [t for t in study.study.get_trials() if t.state.name == "RUNNING"]
            study.study.tell(running.number, 0.5)

        assert study.work(overtaken)
        assert study.states().count("COMPLETE") == 1

    def test_other_mistakes_are_not_swallowed(self, tmp_path, storage):
        _, study = self.study(tmp_path, storage)
        study.enqueue()

        def broken(job, on_epoch):
            raise RuntimeError("a mistake of ours")

        with pytest.raises(RuntimeError, match="of ours"):
            study.work(broken)

    @pytest.mark.parametrize("breathed", [True, False])
    def test_the_points_of_a_dead_worker_come_back(self, tmp_path, storage, breathed):
        ledger, study = self.study(tmp_path, storage)
        study.enqueue()
        with pytest.warns(UserWarning, match="Heartbeat"):
            dead = study.study.ask()  # takes a point and never breathes again
        if breathed:
            storage.record_heartbeat(dead._trial_id)
        seen = []
        while study.work(self.trainer(ledger, seen)):
            pass
        assert len(seen) == 3
        assert not study.done
        with storage.engine.begin() as connection:
            connection.execute(text("UPDATE trial_heartbeats SET heartbeat = datetime(heartbeat, '-1 hour')"))
        while study.work(self.trainer(ledger, seen)):
            pass

        assert len(seen) == len(set(seen)) == 4
        assert study.done

    def test_tpe_tries_as_many_points_as_it_may(self, tmp_path, storage):
        ledger, study = self.study(tmp_path, storage, sampler="tpe", trials=3)
        study.enqueue()
        seen = []
        while study.work(self.trainer(ledger, seen)):
            pass

        assert len(seen) == 3
        assert study.done

    def test_several_workers_of_tpe_try_different_points(self, tmp_path, storage):
        many = {**MACC, "loss": "CrossEntropy + {1,2,3,4,5,6,7,8}*MACC"}
        ledger = made_up(tmp_path, methods=[many], search={"sampler": "tpe", "trials": 12})
        dataset, method = ledger.catalog.datasets[0], ledger.experiment.methods[0]
        workers = [search.GridStudy(ledger, dataset, method, storage, tmp_path) for _ in range(3)]
        seen = []
        turns = [True]
        while any(turns):
            turns = [worker.work(self.trainer(ledger, seen)) for worker in workers]

        assert len(seen) == len(set(seen)) == 12

    def test_a_worker_of_tpe_that_comes_too_late_trains_nothing(self, tmp_path, storage):
        ledger, study = self.study(tmp_path, storage, sampler="tpe", trials=2)
        seen = []
        while study.work(self.trainer(ledger, seen)):
            pass
        # It saw that a point was waiting, and others took it first.
        study.study.optimize(lambda trial: study._objective(trial, self.trainer(ledger, seen)), n_trials=1)

        assert len(seen) == 2
        assert study.done

    def test_tpe_ends_where_nothing_can_be_trained(self, tmp_path, storage):
        ledger, study = self.study(tmp_path, storage, sampler="tpe", trials=3)

        def hopeless(job, on_epoch):
            ledger.failed[job] = "it diverged"

        turns = 0
        while study.work(hopeless):
            turns += 1
            assert turns < 50
        assert study.done
        assert len(ledger.failed) >= 3

    def test_points_that_lag_are_given_up(self, tmp_path, storage):
        turned = {**MACC, "loss": "CrossEntropy + {10,9,8,7,6,5,1}*MACC", "set": {}}
        ledger = made_up(tmp_path, methods=[turned], search={"prune": True})
        study = search.GridStudy(
            ledger, ledger.catalog.datasets[0], ledger.experiment.methods[0], storage, tmp_path
        )
        study.enqueue()

        def fake(job, on_epoch):
            weight = dict(job.point)["weight of MACC"]
            for epoch in range(1, 4):
                on_epoch({"epoch": epoch, "val/accuracy": 0.1 if weight == 1 else 0.9})
            train(ledger, job)

        while study.work(fake):
            pass

        assert study.states() == ["COMPLETE"] * 6 + ["PRUNED"]
        assert study.done


class TestAddresses:
    def test_what_a_driver_says_is_shown_without_secrets(self):
        address = "postgresql://me:a%40b@host/grids?sslpassword=c+d&application_name=macc"
        said = "macc: a@b, a%40b, c d, c+d and c%20d are refused"
        assert search.without_secrets(said, address) == "macc: ***, ***, ***, *** and *** are refused"

    @pytest.mark.parametrize(
        ("address", "shown"),
        [
            ("postgresql://me:s3cr3t@host:5432/grids", "postgresql://me:***@host:5432/grids"),
            ("postgresql://me@host:5432/grids", "postgresql://me@host:5432/grids"),
            ("postgresql://me:s3%40cr3t%2F@host/grids", "postgresql://me:***@host/grids"),
            ("postgresql://me:s3cr3t?/x@host/grids", "postgresql://***"),
            ("postgresql://host/grids?user=me&password=p%40s3cr3t", "postgresql://host/grids"),
            ("postgresql://host/grids?user=me&password=p@s3cr3t", "postgresql://***"),
            ("postgresql://host:5432/grids?password=a:s3cr3t@b/c", "postgresql://***"),
            ("postgresql://host/grids?sslpassword=s3cr3t&passfile=/s3cr3t", "postgresql://host/grids"),
            ("postgresql:///grids?host=h&password=s3cr3t", "postgresql:///grids"),
            ("mysql://host/grids?password=s3cr3t", "mysql://host/grids"),
            ("postgresql://me:p@s3cr3t@host/grids", "postgresql://***"),
            ("postgresql://me:p@ss:s3cr3t@host/grids", "postgresql://***"),
            ("postgresql://me/x:s3cr3t@host/grids", "postgresql://***"),
            ("postgresql://me:12/s3cr3t@host/grids", "postgresql://***"),
            ("postgresql://me:s3cr3t@[::1]:5432/grids", "postgresql://me:***@[::1]:5432/grids"),
            ("sqlite:////tmp/x@y:z.db", "sqlite:////tmp/x@y:z.db"),
            ("me:s3cr3t", "***"),
        ],
    )
    def test_no_password_is_shown(self, address, shown):
        assert search.hidden(address) == shown

    @pytest.mark.parametrize(
        "address",
        [
            "postgresql://me:s3cr3t@127.0.0.1:1/grids",
            "postgresql://me:s3cr3t@127.0.0.1:nonsense/grids",
            "nonsense://me:s3cr3t@host/grids",
            "oracle://me:s3cr3t@host/grids",
            "me:s3cr3t",
            "postgresql://127.0.0.1:1/grids?user=me&password=p@s3cr3t",
            "postgresql://127.0.0.1:1/grids?user=me&password=s3cr3t&nonsense=s3cr3t",
            "postgresql://127.0.0.1:1/grids?user=me&sslpassword=s3cr3t&sslmode=s3cr3t",
        ],
    )
    def test_errors_do_not_tell_it_either(self, address, tmp_path):
        with pytest.raises(ValueError) as caught:
            search.open_storage(address, tmp_path)

        assert "s3cr3t" not in str(caught.value)
        assert "\n" not in str(caught.value)
