"""Optuna's database, with a heart that beats on when the database is away for a while."""

from contextlib import suppress

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import SQLAlchemyError


class Storage(RDBStorage):
    """A database whose restart does not end the thread that tells it that a worker is alive."""

    def record_heartbeat(self, trial_id: int) -> None:
        """Tell that a trial's worker is alive; where nobody listens, the next beat tells it."""
        with suppress(SQLAlchemyError, StorageInternalError):
            super().record_heartbeat(trial_id)
