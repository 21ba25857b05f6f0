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


def refinement(logits, labels, halves):
    """Each half at the temperature of the other, found by golden section on the loss of smoothed
    labels.
    """

    def loss(row, label, log_t):
        scaled = [z / math.exp(log_t) for z in row]
        most = max(scaled)
        return most + math.log(math.fsum(math.exp(z - most) for z in scaled)) - scaled[label]

    def objective(rows, log_t):
        even = [math.fsum(loss(row, j, log_t) for j in range(len(row))) / len(row) for row, _ in rows]
        return math.fsum(loss(row, y, log_t) for row, y in rows) + math.fsum(even) / len(rows)

    total = 0.0
    for half in (0, 1):
        rows = [(row, y) for row, y, h in zip(logits, labels, halves, strict=True) if h != half]
        low, high, ratio = -10.0, 10.0, (math.sqrt(5) - 1) / 2
        while high - low > 1e-9:
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            low, high = (low, right) if objective(rows, left) < objective(rows, right) else (left, high)
        held = [(row, y) for row, y, h in zip(logits, labels, halves, strict=True) if h == half]
        total += math.fsum(loss(row, y, low) for row, y in held)
    return total / len(labels)


def _of_class(probs, labels, positive):
    return [float(row[positive]) for row in probs], [float(y == positive) for y in labels]


def positive_ece(probs, labels, bins=15, positive=1):
    scores, hits = _of_class(probs, labels, positive)
    return sum(n / len(labels) * abs(gap) for n, gap in _gaps(scores, hits, bins))


def positive_mce(probs, labels, bins=15, positive=1):
    scores, hits = _of_class(probs, labels, positive)
    return max(abs(gap) for _, gap in _gaps(scores, hits, bins))


def accuracy(probs, labels):
    return sum(top(row) == y for row, y in zip(probs, labels, strict=True)) / len(labels)


def nll(probs, labels):
    return -math.fsum(math.log(row[y]) for row, y in zip(probs, labels, strict=True)) / len(labels)


def brier(probs, labels):
    return math.fsum(
        (float(p) - (j == y)) ** 2 for row, y in zip(probs, labels, strict=True) for j, p in enumerate(row)
    ) / len(labels)


def over_confidence(probs, labels, bins=15):
    return sum(n / len(labels) * max(0, -gap) for n, gap in _gaps(*_top_label(probs, labels), bins))


def under_confidence(probs, labels, bins=15):
    return sum(n / len(labels) * max(0, gap) for n, gap in _gaps(*_top_label(probs, labels), bins))


def rmsce(probs, labels, bins=15):
    return math.sqrt(sum(n / len(labels) * gap**2 for n, gap in _gaps(*_top_label(probs, labels), bins)))


def _equal_mass_error(scores, hits, bins):
    """Mean absolute gap over ranges that each end at the ceil(i m / bins)-th smallest score."""
    ordered = sorted(scores)
    ends = [ordered[-(-i * len(ordered) // bins) - 1] for i in range(1, bins + 1)]
    members = [[] for _ in range(bins)]
    for p, hit in zip(scores, hits, strict=True):
        members[next(i for i, end in enumerate(ends) if p <= end)].append((p, hit))
    return sum(abs(math.fsum(h - p for p, h in m)) for m in members) / len(scores)


def ace(probs, labels, bins=15, top_label=False):
    if top_label:
        return _equal_mass_error(*_top_label(probs, labels), bins)
    return tace(probs, labels, bins, threshold=-1)


def tace(probs, labels, bins=15, threshold=0.01):
    total = 0.0
    for j in range(len(probs[0])):
        kept = [
            (float(row[j]), float(y == j)) for row, y in zip(probs, labels, strict=True) if row[j] > threshold
        ]
        if kept:
            total += _equal_mass_error(*zip(*kept, strict=True), bins)
    return total / len(probs[0])


def smooth_ece(probs, labels, points=4000, images=4):
    """Riemann sums of the mirrored Gaussians, image by image, and bisection."""
    confidence, correct = _top_label(probs, labels)

    def error(sigma):
        total = 0.0
        for m in range(points):
            t = (m + 0.5) / points
            value = 0.0
            for c, hit in zip(confidence, correct, strict=True):
                kernel = sum(
                    math.exp(-(((t - s) / sigma) ** 2) / 2)
                    for i in range(-images, images + 1)
                    for s in (2 * i + c, 2 * i - c)
                )
                value += kernel * (hit - c)
            total += abs(value) / points
        return total / (sigma * math.sqrt(2 * math.pi) * len(confidence))

    low, high = 1e-6, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return (low + high) / 2


def ks_error(probs, labels):
    pairs = list(zip(*_top_label(probs, labels), strict=True))
    return max(abs(math.fsum(hit - c for c, hit in pairs if c <= t)) for t, _ in pairs) / len(pairs)


def pairs_won(scores, positive):
    """Share of (positive, negative) pairs in the right order, half for a tie."""
    up = [s for s, yes in zip(scores, positive, strict=True) if yes]
    down = [s for s, yes in zip(scores, positive, strict=True) if not yes]
    if not up or not down:
        return math.nan
    return sum((a > b) + (a == b) / 2 for a in up for b in down) / (len(up) * len(down))


def auroc(probs, labels):
    areas = [pairs_won([row[j] for row in probs], [y == j for y in labels]) for j in range(len(probs[0]))]
    areas = [a for a in areas if not math.isnan(a)]
    return sum(areas) / len(areas) if areas else math.nan


def failure_auroc(probs, labels):
    return pairs_won(*_top_label(probs, labels))


def risks(probs, labels):
    """Error rate of the k most confident; a tied group hands in its errors evenly."""
    pairs = list(zip(*_top_label(probs, labels), strict=True))
    groups = {}
    for c, hit in pairs:
        groups.setdefault(c, []).append(1 - hit)
    curve, wrong = [], 0.0
    for c in sorted(groups, reverse=True):
        for _ in groups[c]:
            wrong += sum(groups[c]) / len(groups[c])
            curve.append(wrong / (len(curve) + 1))
    return curve


def aurc(probs, labels):
    curve = risks(probs, labels)
    return sum(curve) / len(curve)


def eaurc(probs, labels):
    right = round(accuracy(probs, labels) * len(labels))
    best = [max(0, k - right) / k for k in range(1, len(labels) + 1)]
    return aurc(probs, labels) - sum(best) / len(best)


def risk_at_coverage(probs, labels, coverage=0.9):
    k = next(k for k in range(1, len(labels) + 1) if k / len(labels) >= coverage - 1e-12)
    return risks(probs, labels)[k - 1]


def coverage_at_risk(probs, labels, risk=0.05):
    pairs = list(zip(*_top_label(probs, labels), strict=True))
    best = 0.0
    for threshold, _ in pairs:
        answered = [hit for c, hit in pairs if c >= threshold]
        if 1 - sum(answered) / len(answered) <= risk + 1e-12:
            best = max(best, len(answered) / len(pairs))
    return best


def brier_decomposition(probs, labels, bins=15):
    """Move every bin of every class by its mean gap; what is left of the Brier score is
    refinement.
    """
    moved = [[0.0] * len(probs[0]) for _ in labels]
    for j in range(len(probs[0])):
        for b in range(bins):
            rows = [i for i in range(len(labels)) if which_bin(float(probs[i][j]), bins) == b]
            gap = sum((labels[i] == j) - float(probs[i][j]) for i in rows) / len(rows) if rows else 0.0
            for i in rows:
                moved[i][j] = float(probs[i][j]) + gap
    refinement = brier(moved, labels)
    return brier(probs, labels) - refinement, refinement
