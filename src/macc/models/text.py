"""Networks for text."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Five windows of five tokens, one after another: three convolutions and two poolings.
SHORTEST = 21


class GPCNN(nn.Module):
    """Three convolutions over word vectors, the largest value of each over the whole text, two
    linear layers.

    Args:
        num_classes: ``K``.
        vocabulary: Number of token ids; 0 is padding, whose vector is and stays zero.
        dimensions: Length of a word vector.
        vectors: Word vectors ``(vocabulary, dimensions)`` to start from, such as GloVe.
        frozen: Keep the vectors as they are.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        vocabulary: int,
        dimensions: int,
        vectors: Tensor | None = None,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dimensions, padding_idx=0)
        if vectors is not None:
            with torch.no_grad():
                self.embedding.weight.copy_(vectors)
                self.embedding.weight[0] = 0
        self.embedding.weight.requires_grad_(not frozen)
        self.conv1 = nn.Conv1d(dimensions, 128, 5)
        self.conv2 = nn.Conv1d(128, 128, 5)
        self.conv3 = nn.Conv1d(128, 128, 5)
        self.fc1 = nn.Linear(128, 128)
        self.fc = nn.Linear(128, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps token ids ``(N, L)``, ``L`` ≥ 21, to logits ``(N, K)``."""
        if tokens.shape[1] < SHORTEST:
            raise ValueError(
                f"gpcnn needs texts of at least {SHORTEST} tokens, got {tokens.shape[1]}; pad them with 0"
            )
        x = self.embedding(tokens).transpose(1, 2)
        x = F.max_pool1d(F.relu(self.conv1(x)), 5, stride=1)
        x = F.max_pool1d(F.relu(self.conv2(x)), 5, stride=1)
        x = F.relu(self.conv3(x)).amax(dim=2)
        return self.fc(F.relu(self.fc1(x)))  # type: ignore[no-any-return]


def gpcnn(
    *,
    num_classes: int,
    vocabulary: int = 2000,
    dimensions: int = 100,
    vectors: Tensor | None = None,
    frozen: bool | None = None,
) -> GPCNN:
    """The paper's global-pooling text CNN: 128 features, 0.247 M parameters beside its word
    vectors.

    Args:
        num_classes: ``K``.
        vocabulary: Number of token ids, 0 for padding included; given by ``vectors`` where there
            are any.
        dimensions: Length of a word vector; given by ``vectors`` where there are any.
        vectors: Word vectors ``(vocabulary, dimensions)`` to start from.
        frozen: Keep the vectors as they are: the paper's choice, and the default where ``vectors``
            are given.

    Example:
        >>> model = gpcnn(num_classes=20, vectors=torch.randn(500, 100))
        >>> tuple(model(torch.ones(3, 1000, dtype=torch.int64)).shape)
        (3, 20)
        >>> sum(p.numel() for p in model.parameters() if p.requires_grad)
        247316
    """
    if vectors is not None:
        if vectors.ndim != 2:
            raise ValueError(f"`vectors` must be (vocabulary, dimensions), got shape {tuple(vectors.shape)}")
        vocabulary, dimensions = vectors.shape
    elif frozen:
        raise ValueError("`frozen=True` would keep random word vectors for ever; give `vectors` to freeze")
    return GPCNN(
        num_classes=num_classes,
        vocabulary=vocabulary,
        dimensions=dimensions,
        vectors=vectors,
        frozen=vectors is not None if frozen is None else frozen,
    )
