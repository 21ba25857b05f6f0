"""Slow loops, written from the formulas and not from the code: what the fast code is checked
against.
"""

import math


def softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(z - top) for z in logits]
    return [w / sum(weights) for w in weights]


def cross_entropy(logits, labels):
    return sum(-math.log(softmax(z)[y]) for z, y in zip(logits, labels, strict=True)) / len(labels)


def label_smoothing(logits, labels, alpha, over):
    total = 0.0
    for z, y in zip(logits, labels, strict=True):
        s, num = softmax(z), len(z)
        for k in range(num):
            if over == "others":
                q = 1 - alpha if k == y else alpha / (num - 1)
            else:
                q = alpha / num + (1 - alpha if k == y else 0)
            total -= q * math.log(s[k])
    return total / len(labels)


def focal(logits, labels, gamma):
    total = 0.0
    for z, y in zip(logits, labels, strict=True):
        s = softmax(z)[y]
        total -= (1 - s) ** gamma * math.log(s)
    return total / len(labels)


def flsd(logits, labels):
    total = 0.0
    for z, y in zip(logits, labels, strict=True):
        s = softmax(z)[y]
        total -= (1 - s) ** (5 if s < 0.2 else 3) * math.log(s)
    return total / len(labels)


def brier(logits, labels):
    total = 0.0
    for z, y in zip(logits, labels, strict=True):
        total += sum((s - (k == y)) ** 2 for k, s in enumerate(softmax(z)))
    return total / len(labels)


def _confidence(logits, labels):
    probs = [softmax(z) for z in logits]
    confidence = [max(s) for s in probs]
    return confidence, [s.index(r) == y for s, r, y in zip(probs, confidence, labels, strict=True)]


def mmce(logits, labels, *, weighted, legacy=False, width=0.4):
    r, c = _confidence(logits, labels)
    num = len(r)

    def kernel(i, j):
        return math.exp(-abs(r[i] - r[j]) / width)

    if not weighted:
        pairs = [(i, j) for i in range(num) for j in range(num)]
        return sum((c[i] - r[i]) * (c[j] - r[j]) * kernel(i, j) for i, j in pairs) / num**2
    right = [i for i in range(num) if c[i]]
    wrong = [i for i in range(num) if not c[i]]
    if not right or not wrong:
        return 0.0
    m, n = len(right), len(wrong)
    both_right = sum((1 - r[i]) * (1 - r[j]) * kernel(i, j) for i in right for j in right) / m**2
    both_wrong = sum(r[i] * r[j] * kernel(i, j) for i in wrong for j in wrong) / n**2
    mixed = sum((1 - r[i]) * r[j] * kernel(i, j) for i in right for j in wrong) / (m * n)
    if legacy:
        both_right, both_wrong, mixed = both_right / m**2, both_wrong / n**2, mixed / (m * n)
    return math.sqrt(both_right + both_wrong - 2 * mixed + 1e-10)


def dca(logits, labels):
    r, c = _confidence(logits, labels)
    return abs(sum(r) / len(r) - sum(c) / len(c))


def mdca(logits, labels):
    num, classes = len(labels), len(logits[0])
    total = 0.0
    for j in range(classes):
        confidence = sum(softmax(z)[j] for z in logits) / num
        total += abs(confidence - sum(y == j for y in labels) / num)
    return total / classes


def mbls(logits, margin):
    entries = [max(0.0, max(z) - value - margin) for z in logits for value in z]
    return sum(entries) / len(entries)


def dual_focal(logits, labels, gamma):
    total = 0.0
    for z, y in zip(logits, labels, strict=True):
        s = softmax(z)
        below = max((value for value in s if value < s[y]), default=0.0)
        total -= (1 - s[y] + below) ** gamma * math.log(s[y])
    return total / len(labels)


def bsce_gra(logits, labels, gamma):
    total = 0.0
    for z, y in zip(logits, labels, strict=True):
        s = softmax(z)
        distance = math.sqrt(sum((value - (k == y)) ** 2 for k, value in enumerate(s)))
        total -= distance**gamma * math.log(s[y])
    return total / len(labels)


def acls(logits, margin, top, others):
    total = 0.0
    for z in logits:
        at = z.index(max(z))
        total += top * max(0.0, z[at] - margin) ** 2
        for k, value in enumerate(z):
            if k != at:
                total += others / (len(z) - 1) * max(0.0, z[at] - value - margin) ** 2
    return total / len(logits)


def entropy(probs):
    return -sum(s * math.log(s) for s in probs)


def entropy_penalty(logits):
    return math.log(len(logits[0])) - sum(entropy(softmax(z)) for z in logits) / len(logits)


def soft_ece(logits, labels, bins, temperature, norm):
    confidence, right = _confidence(logits, labels)
    shares = [
        softmax([-((c - (b + 0.5) / bins) ** 2) / temperature for b in range(bins)]) for c in confidence
    ]
    total = 0.0
    for b in range(bins):
        size = sum(share[b] for share in shares)
        accuracy = sum(share[b] * a for share, a in zip(shares, right, strict=True)) / size
        mean = sum(share[b] * c for share, c in zip(shares, confidence, strict=True)) / size
        total += size / len(labels) * abs(accuracy - mean) ** norm
    return total ** (1 / norm)


def avuc(logits, labels, threshold=None):
    confidence, right = _confidence(logits, labels)
    uncertainty = [entropy(softmax(z)) for z in logits]
    if threshold is None:
        groups = [
            [u for u, a in zip(uncertainty, right, strict=True) if a == which] for which in (True, False)
        ]
        means = [sum(group) / len(group) for group in groups if group]
        threshold = sum(means) / len(means)
    count = dict.fromkeys(("AC", "AU", "IC", "IU"), 0.0)
    for p, a, u in zip(confidence, right, uncertainty, strict=True):
        case = ("A" if a else "I") + ("C" if u <= threshold else "U")
        count[case] += (p if a else 1 - p) * (1 - math.tanh(u) if u <= threshold else math.tanh(u))
    return math.log(1 + (count["AU"] + count["IC"]) / (count["AC"] + count["IU"]))


def clue(mean, variance, labels):
    total = 0.0
    for z, u, y in zip(mean, variance, labels, strict=True):
        scale = math.sqrt(1 + math.pi / 8 * sum(u) / len(u))
        total += (-math.log(softmax(z)[y]) - entropy(softmax([value / scale for value in z]))) ** 2
    return total / len(labels)


def moments(features, weight, bias, masks, p):
    """Mean logits and unbiased variance over given masks ``masks[m][i][d]`` of 0 and 1."""
    mean, variance = [], []
    for i, f in enumerate(features):
        passes = []
        for mask in masks:
            dropped = [keep * value / (1 - p) for keep, value in zip(mask[i], f, strict=True)]
            passes.append(
                [
                    sum(w * d for w, d in zip(row, dropped, strict=True)) + b
                    for row, b in zip(weight, bias, strict=True)
                ]
            )
        average = [sum(z[j] for z in passes) / len(passes) for j in range(len(weight))]
        mean.append(average)
        variance.append(
            [sum((z[j] - average[j]) ** 2 for z in passes) / (len(passes) - 1) for j in range(len(weight))]
        )
    return mean, variance


def macc(mean, variance):
    """Equation 1 of the paper, symbol by symbol."""
    batch, classes = len(mean), len(mean[0])
    total = 0.0
    for j in range(classes):
        confidence = 0.0
        certainty = 0.0
        for i in range(batch):
            confidence += softmax(mean[i])[j]
            certainty += 1 - math.tanh(variance[i][j])
        total += abs(confidence / batch - certainty / batch)
    return total / classes


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def binary_focal(logits, labels, gamma=0.0, pos_weight=1.0):
    """The mean over logits of one list, each with its label of 0 or 1; with gamma 0 the
    cross-entropy.
    """
    values = []
    for z, y in zip(logits, labels, strict=True):
        right = sigmoid(z) if y == 1 else 1 - sigmoid(z)
        values.append((pos_weight if y == 1 else 1) * -((1 - right) ** gamma) * math.log(right))
    return sum(values) / len(values)


def label_gap(probs, others):
    """The mean over labels of the distance of two means over rows."""
    rows, columns = len(probs), len(probs[0])
    return (
        sum(abs(sum(probs[i][j] - others[i][j] for i in range(rows)) / rows) for j in range(columns))
        / columns
    )
