"""Calibration of more predictions than one machine reads, on Dask.

Each partition becomes the sums of :class:`macc.metrics.Calibration`, and sums are put together as a
tree. Dask computes a part again where a worker dies, and parts depend on nothing but their
partition, so that a result is the same to the last digit on any number of workers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from macc.metrics import Calibration
from macc.metrics.frames import explained, read_columns
from macc.metrics.naming import named_labels
from macc.predictions.parts import Summed, put_together, stream_files, tree
from macc.words import documented

try:
    import dask
    from dask import delayed
    from dask.distributed import Client, KilledWorker
except ImportError as error:
    raise ValueError(
        f"a cluster needs dask and distributed ({error}); install them with: pip install 'macc-torch[cluster]'"
    ) from error


@documented
def calibration(
    data: Any,
    labels: Any,
    probs: str | Sequence[str] | None = None,
    *,
    classes: Sequence[str] | None = None,
    weights: str | None = None,
    **options: Any,
) -> Calibration:
    """The sums of all rows of a Dask collection; ``.report()`` and ``.compute()`` measure them.

    It runs where ``dask.compute`` does: on the cluster of the current ``Client``, or on threads.

    Args:
        data: A Dask data frame, or a Dask array of probabilities ``(N, K)``.
        labels: The name of the column of labels, or a Dask array ``(N,)``.
        probs: The columns of the classes of a frame, as in :func:`macc.evaluate`.
        classes: Names of the classes.
        weights: The column of weights of a frame.
        **options: Of :class:`macc.metrics.Calibration`, such as ``bins``, ``positive``,
            ``from_logits``, ``normalise`` and ``relative_weights``.

    Example:
        >>> import dask.array as da
        >>> import numpy as np
        >>> from macc.integrations.dask import calibration
        >>> probs = da.from_array(np.tile([0.8, 0.2], (1000, 1)), chunks=(250, 2))
        >>> labels = da.from_array(np.arange(1000) % 2, chunks=250)
        >>> found = calibration(probs, labels).report(metrics=["ece"])["ece"]
        >>> round(found.value, 3), found.low < 0.3 < found.high
        (0.3, True)
    """
    options = {"intervals": True, **options}
    parts: list[Any]
    if isinstance(labels, str):
        leaf = partial(_of_frame, labels, probs, classes, weights, options)
        parts = list(data.to_delayed())
    else:
        if weights is not None or probs is not None:
            raise ValueError("probs= and weights= name columns of a data frame; leave them out for arrays")
        whole = data.rechunk({1: -1})
        rows = labels.rechunk((whole.chunks[0],))
        leaf = partial(_of_arrays, classes, options)
        parts = list(zip(whole.to_delayed()[:, 0], rows.to_delayed(), strict=True))
    (top,) = dask.compute(_graph(leaf, put_together, parts))
    if top is None:
        raise ValueError("the collection has no rows")
    sums: Calibration = top.sums
    return sums


def of_files(address: str, paths: Sequence[Path], reading: Mapping[str, Any], **options: Any) -> Calibration:
    """As :func:`macc.predictions.stream_files`, on the cluster whose scheduler has this address.

    Workers need macc, and the files under the same names.
    """
    with _connected(address) as client:

        def engine(
            leaf: Callable[[Any, int], Any], join: Callable[[Iterable[Any]], Any], items: Sequence[Any]
        ) -> Any:
            return client.compute(_graph(leaf, join, items)).result()

        return stream_files([path.resolve() for path in paths], reading, engine=engine, **options)


def _graph(
    leaf: Callable[[Any, int], Any], join: Callable[[Iterable[Any]], Any], items: Sequence[Any]
) -> Any:
    """The tree as work that waits to be done."""
    # A part is not a function of its arguments alone: the file behind a name may have changed.
    computed, joined = delayed(leaf, pure=False), delayed(join, pure=False)
    return tree(lambda at: computed(items[at], at), lambda nodes: joined(list(nodes)), len(items))


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no Dask scheduler answers at {address} ({error}); is it running?") from None
    try:
        yield client
    except KilledWorker as error:
        raise ValueError(
            f"{address}: several workers in a row died of the same part, probably for want of memory ({error})"
        ) from None
    except ImportError as error:
        raise ValueError(f"{address}: the workers need macc too ({error})") from None
    finally:
        client.close()


def _of_frame(
    labels: str,
    probs: str | Sequence[str] | None,
    classes: Sequence[str] | None,
    weights: str | None,
    options: Mapping[str, Any],
    frame: Any,
    number: int,
) -> Summed | None:
    if len(frame) == 0:
        return None
    found = read_columns(frame, labels, probs, classes, weights)
    each = {} if found.weights is None else {"weights": found.weights}
    with explained(found):
        return _part(found.scores, found.labels, found.classes, options, number, **each)


def _of_arrays(
    classes: Sequence[str] | None, options: Mapping[str, Any], arrays: tuple[Any, Any], number: int
) -> Summed | None:
    scores, labels = arrays
    return None if len(labels) == 0 else _part(scores, labels, classes, options, number)


def _part(
    scores: Any,
    labels: Any,
    classes: Sequence[str] | None,
    options: Mapping[str, Any],
    number: int,
    **each: Any,
) -> Summed:
    name = f"partition {number}"
    columns = 2 if scores.ndim == 1 else scores.shape[1]
    sums = Calibration(columns, classes=classes, seed=number, **options)
    try:
        sums.update(scores, named_labels(labels, classes), **each)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return Summed(name, sums)
