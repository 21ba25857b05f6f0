"""Freezing leaves the classifier to train."""

import copy
import pickle

import pytest
import torch

from macc import attach, models


class TestFreeze:
    def test_statistics_of_batch_norm_stay(self):
        model = models.freeze(models.build("resnet20", num_classes=3)).train()
        before = copy.deepcopy(model.state_dict())
        model(torch.randn(4, 3, 8, 8))
        torch.testing.assert_close(model.state_dict(), before)
        torch.testing.assert_close(model(x := torch.randn(4, 3, 8, 8)), model.eval()(x))

    def test_a_second_stage_trains_everything(self):
        model = models.freeze(models.build("resnet20", num_classes=3))
        before = model.bn1.running_mean.clone()
        models.unfreeze(model).train()(torch.randn(4, 3, 8, 8)).sum().backward()

        assert all(p.grad is not None for p in model.parameters())
        assert not torch.equal(model.bn1.running_mean, before)
        models.freeze(models.freeze(model), bn=False).train()
        before = model.bn1.running_mean.clone()
        model(torch.randn(4, 3, 8, 8))
        assert not torch.equal(model.bn1.running_mean, before)

    def test_and_drift_when_asked(self):
        model = models.freeze(models.build("resnet20", num_classes=3), bn=False).train()
        before = model.bn1.running_mean.clone()
        model(torch.randn(4, 3, 8, 8))

        assert not torch.equal(model.bn1.running_mean, before)

    def test_before_and_after_attach(self):
        for order in ((attach, models.freeze), (models.freeze, attach)):
            model = models.build("resnet20", num_classes=3)
            for step in order:
                model = step(model)
            assert [name for name, p in model.named_parameters() if p.requires_grad] == [
                "fc.weight",
                "fc.bias",
            ]

    def test_copies_and_pickles(self):
        model = models.freeze(models.build("resnet20", num_classes=3))
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            before = copy.deepcopy(other.state_dict())
            other.train()(torch.randn(4, 3, 8, 8))
            torch.testing.assert_close(other.state_dict(), before)

    def test_a_larger_head(self):
        model = models.freeze(models.build("resnet20", num_classes=3), head="layer3").train()
        before = copy.deepcopy(model.state_dict())
        model(torch.randn(4, 3, 8, 8))
        after = model.state_dict()

        assert {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad} == {"layer3"}
        moved = {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}
        assert moved == {"layer3"}
        with pytest.raises(ValueError, match="no module called 'body'; it has conv1, bn1"):
            models.freeze(model, head="body")
