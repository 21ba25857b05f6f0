"""Optuna's database, with a heart that beats on when the database is away for a while."""

from contextlib import suppress

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError


class Storage(RDBStorage):
    """A database whose restart does not end the thread that tells it that a worker is alive."""

    def record_heartbeat(self, trial_id: int) -> None:
        """Tell that a trial's worker is alive; where nobody listens, the next beat tells it."""
        with suppress(SQLAlchemyError, StorageInternalError):
            super().record_heartbeat(trial_id)

    def notice_the_silent(self, study_id: int) -> None:
        """Give a first heartbeat to trials that have none: their workers died before it, and nobody
        would ever miss the next one.
        """
        with self.engine.connect() as connection:
            heard = set(connection.scalars(text("SELECT trial_id FROM trial_heartbeats")))
        for trial in self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
            if trial._trial_id not in heard:
                self.record_heartbeat(trial._trial_id)
