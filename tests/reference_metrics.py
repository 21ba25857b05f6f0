"""Slow loops that say what a metric is; nothing here is shared with the package."""

import math


def top(row):
    best = 0
    for j, p in enumerate(row):
        if p > row[best]:
            best = j
    return best


def which_bin(p, bins):
    for i in range(bins):
        if i / bins < p <= (i + 1) / bins:
            return i
    return 0 if p <= 0 else bins - 1


def _gaps(scores, hits, bins):
    members = [[] for _ in range(bins)]
    for p, hit in zip(scores, hits, strict=True):
        members[which_bin(p, bins)].append((p, hit))
    return [
        (len(m), math.fsum(h for _, h in m) / len(m) - math.fsum(p for p, _ in m) / len(m))
        for m in members
        if m
    ]


def _top_label(probs, labels):
    rows = [[float(p) for p in row] for row in probs]
    return [max(row) for row in rows], [float(top(row) == y) for row, y in zip(rows, labels, strict=True)]


def ece(probs, labels, bins=15):
    return sum(n / len(labels) * abs(gap) for n, gap in _gaps(*_top_label(probs, labels), bins))


def mce(probs, labels, bins=15):
    return max(abs(gap) for _, gap in _gaps(*_top_label(probs, labels), bins))


def classwise_ece(probs, labels, bins=15):
    return [
        sum(
            n / len(labels) * abs(gap)
            for n, gap in _gaps([float(row[j]) for row in probs], [float(y == j) for y in labels], bins)
        )
        for j in range(len(probs[0]))
    ]


def sce(probs, labels, bins=15):
    values = classwise_ece(probs, labels, bins)
    return sum(values) / len(values)


def accuracy(probs, labels):
    return sum(top(row) == y for row, y in zip(probs, labels, strict=True)) / len(labels)


def nll(probs, labels):
    return -math.fsum(math.log(row[y]) for row, y in zip(probs, labels, strict=True)) / len(labels)


def brier(probs, labels):
    return math.fsum(
        (float(p) - (j == y)) ** 2 for row, y in zip(probs, labels, strict=True) for j, p in enumerate(row)
    ) / len(labels)
