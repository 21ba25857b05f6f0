"""Splits, options and batches: seeded, checked, and independent of batch size and device."""

import dataclasses
import random

import numpy as np
import pytest
import torch

from macc import data
from macc.data import Augmentation, Batches, Normalisation, Part, Splits, augment
from macc.data._splits import seeded_split, stratified_split


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def part(count=60, classes=3):
    images = torch.arange(count * 3 * 6 * 6, dtype=torch.int64).remainder(251).to(torch.uint8)
    return Part(inputs=images.view(count, 3, 6, 6), labels=torch.arange(count) % classes)


class TestSets:
    @pytest.mark.parametrize("name", ["digits", "synthetic"])
    def test_embedded_sets_have_the_sizes_they_say(self, name):
        splits, about = data.load(name), data.known()[name]

        assert (len(splits.train), len(splits.val), len(splits.test)) == about.sizes
        assert splits.num_classes == about.num_classes
        assert splits.kind == about.kind
        assert splits.digest() == data.load(name).digest()

    def test_digits_are_scikit_learns_and_no_image_is_in_two_splits(self):
        from sklearn.datasets import load_digits

        splits = data.load("digits")
        parts = [splits.train, splits.val, splits.test]
        images = torch.cat([p.inputs for p in parts]).flatten(1).double() * 16 / 255
        labels = torch.cat([p.labels for p in parts])
        pixels, targets = load_digits(return_X_y=True)
        ours = sorted(
            (tuple(row), label) for row, label in zip(images.round().tolist(), labels.tolist(), strict=True)
        )
        theirs = sorted(
            (tuple(row), label) for row, label in zip(pixels.tolist(), targets.tolist(), strict=True)
        )

        assert ours == theirs

    def test_digits_normalisation_is_that_of_the_training_split(self):
        splits = data.load("digits")
        fitted = Normalisation.fit(splits.train.inputs)

        assert splits.normalisation.mean == pytest.approx(fitted.mean, abs=5e-4)
        assert splits.normalisation.std == pytest.approx(fitted.std, abs=5e-4)

    def test_shifts_grow_with_their_level(self):
        splits = data.load("digits")
        clean = splits.test.inputs.double()
        for shift in ("noise", "rotation"):
            distance = [
                (splits.shifts[f"{shift}-{level}"].inputs.double() - clean).square().mean().sqrt().item()
                for level in range(1, 6)
            ]

            assert distance == sorted(distance)
            assert distance[0] > 5
            assert torch.equal(splits.shifts[f"{shift}-1"].labels, splits.test.labels)

    def test_a_quarter_turn_of_the_digits_is_exact(self):
        from macc.data._shifts import rotated

        test = data.load("digits").test

        assert torch.equal(rotated(test, 90).inputs, test.inputs.rot90(1, dims=(2, 3)))

    def test_synthetic_labels_follow_their_probabilities(self):
        splits = data.synthetic(test=40_000, num_classes=3, sharpness=3.0, seed=5)
        probs, labels = splits.test.probs, splits.test.labels

        torch.testing.assert_close(probs.sum(1), torch.ones(40_000))
        for k in range(3):
            for low in (0.0, 0.3, 0.6, 0.9):
                chosen = (probs[:, k] >= low) & (probs[:, k] < low + 0.1)
                observed = (labels[chosen] == k).double().mean()
                assert observed.item() == pytest.approx(probs[chosen, k].double().mean().item(), abs=0.05)

    def test_synthetic_of_any_size(self):
        splits = data.synthetic(train=7, val=3, test=5, num_classes=11, num_features=2)

        assert [len(p) for p in splits.parts().values()] == [7, 3, 5]
        assert splits.shape == (2,)
        with pytest.raises(ValueError, match="`val` must be at least 1, got 0"):
            data.synthetic(val=0)

    def test_names_that_are_none(self):
        with pytest.raises(ValueError, match="no data set is called 'digit'; did you mean 'digits'"):
            data.load("digit")
        with pytest.raises(ValueError, match="no data set is called 'qqq'; there are arrays, "):
            data.load("qqq")
        with pytest.raises(ValueError, match="'arrays' reads your own files .* write arrays:PATH"):
            data.load("arrays", root="somewhere")
        with pytest.raises(ValueError, match="'digits' takes no path in its name, got 'digits:here'"):
            data.load("digits:here")


class TestSplits:
    def test_the_split_is_the_published_rule(self):
        order = list(range(1000))
        random.seed(100)
        random.shuffle(order)
        val, train = seeded_split(1000, 0.1)

        assert val.tolist() == order[:100]
        assert train.tolist() == order[100:]

    def test_a_stratified_split_keeps_the_shares_of_the_classes(self):
        labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
        chosen, rest = stratified_split(labels, 0.1)

        assert torch.bincount(labels[chosen]).tolist() == [5, 3, 2]
        assert sorted(chosen.tolist() + rest.tolist()) == list(range(100))
        assert chosen.tolist() == stratified_split(labels, 0.1)[0].tolist()
        assert chosen.tolist() != sorted(chosen.tolist())

    def test_the_split_does_not_follow_training_seeds(self):
        torch.manual_seed(1)
        first = data.load("digits").digest()
        torch.manual_seed(2)
        random.seed(2)
        np.random.seed(2)  # noqa: NPY002 - the global state is what is tested

        assert data.load("digits").digest() == first

    def test_reading_leaves_global_randomness_alone(self):
        state, python = torch.get_rng_state(), random.getstate()
        data.load("digits")
        data.load("synthetic")

        assert torch.equal(torch.get_rng_state(), state)
        assert random.getstate() == python

    def test_values_are_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            data.load("digits").name = "other"

    def test_digest_sees_one_changed_label(self):
        splits = data.load("digits")
        labels = splits.val.labels.clone()
        labels[3] = (labels[3] + 1) % 10
        changed = dataclasses.replace(splits, val=Part(inputs=splits.val.inputs, labels=labels))

        assert changed.digest() != splits.digest()

    def test_mistakes(self):
        three = part()
        with pytest.raises(
            ValueError,
            match=r"labels of the val split of x must lie in \[0, 1\] for 2 classes, got 2 at index 2",
        ):
            Splits(name="x", kind="image", classes=("a", "b"), train=part(classes=2), val=three, test=three)
        with pytest.raises(ValueError, match="60 inputs and 59 labels"):
            Part(inputs=three.inputs, labels=three.labels[:-1])
        with pytest.raises(ValueError, match="must be one int64 class index per sample, got torch.float32"):
            Part(inputs=three.inputs, labels=three.labels.float())
        empty = three.take(torch.tensor([], dtype=torch.int64))
        cut = Part(inputs=three.inputs[:, :, 1:], labels=three.labels)
        with pytest.raises(ValueError, match="the test split of x is empty"):
            Splits(name="x", kind="image", classes=("a", "b", "c"), train=three, val=three, test=empty)
        with pytest.raises(ValueError, match=r"inputs of shape \(3, 5, 6\), the train split of \(3, 6, 6\)"):
            Splits(name="x", kind="image", classes=("a", "b", "c"), train=three, val=cut, test=three)
        with pytest.raises(ValueError, match="`kind` must be one of image, tokens, features, got 'sound'"):
            Splits(name="x", kind="sound", classes=("a", "b", "c"), train=three, val=three, test=three)
        with pytest.raises(ValueError, match="digits has no part 'dev'; there are train, val, test, noise-1"):
            data.load("digits").batches("dev", batch_size=4)
        with pytest.raises(ValueError, match="for training; leave it out for 'val'"):
            data.load("digits").batches("val", batch_size=4, generator=generator())

    @pytest.mark.parametrize(
        "name", ["", ".", "..", ".hidden", "a/b", "a\\b", "../a", "a..b", "a\nb", "a\0", "\x7f"]
    )
    def test_a_shift_names_a_file(self, name):
        with pytest.raises(
            ValueError, match="of digits cannot name a file of predictions; rename it"
        ) as error:
            dataclasses.replace(data.load("digits"), shifts={name: data.load("digits").test})
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("name", ["site [B] #2", "v1.5", "Zürich", "gaussian_noise-3"])
    def test_a_shift_may_have_any_other_name(self, name):
        shifted = dataclasses.replace(data.load("digits"), shifts={name: data.load("digits").test})

        assert list(shifted.parts()) == ["train", "val", "test", name]

    @pytest.mark.parametrize("name", ["train", "val", "test"])
    def test_a_shift_does_not_hide_a_split(self, name):
        with pytest.raises(ValueError, match=f"digits has a split '{name}' that is a shifted test set"):
            dataclasses.replace(data.load("digits"), shifts={name: data.load("digits").test})


class TestOptions:
    def test_subset_keeps_the_shares_of_the_classes(self):
        splits = data.load("digits").subset(train=200, test=50, seed=3)

        assert len(splits.train) == 200
        assert all(len(p) == 50 for p in [splits.test, *splits.shifts.values()])
        share = splits.train.counts(10) / 200 - data.load("digits").train.counts(10) / 1295
        assert share.abs().max() <= 1 / 200

    def test_subset_is_seeded_and_cuts_shifts_like_the_test_set(self):
        splits = data.load("digits")
        first, again, other = (splits.subset(test=50, seed=s) for s in (1, 1, 2))

        assert torch.equal(first.test.inputs, again.test.inputs)
        assert not torch.equal(first.test.inputs, other.test.inputs)
        assert torch.equal(first.test.labels, first.shifts["noise-3"].labels)

    @pytest.mark.parametrize("size", [0, 61, -1])
    def test_subset_of_no_possible_size(self, size):
        with pytest.raises(ValueError, match=f"between 1 and 60 samples, got {size}"):
            part().subset(size, seed=0)

    def test_label_noise_changes_the_share_asked_for_and_only_in_training(self):
        splits = data.load("digits")
        noisy = splits.with_label_noise(0.3, seed=7)
        changed = noisy.train.labels != splits.train.labels

        assert changed.sum() == round(0.3 * 1295)
        assert torch.equal(noisy.val.labels, splits.val.labels)
        assert torch.equal(noisy.train.labels, splits.with_label_noise(0.3, seed=7).train.labels)
        assert noisy.train.labels[changed].unique().tolist() == list(range(10))
        with pytest.raises(ValueError, match=r"share of the labels in \[0, 1\], got 30"):
            splits.with_label_noise(30, seed=7)

    def test_noisy_labels_have_no_true_probabilities(self):
        assert data.load("synthetic").with_label_noise(0.1, seed=0).train.probs is None

    def test_make_imbalanced_is_exponential_and_the_factor_is_met(self):
        balanced = Part(inputs=torch.zeros(1000, 1), labels=torch.arange(1000) % 5)
        counts = balanced.make_imbalanced(16, seed=0).counts(5)

        assert counts.tolist() == [200, 100, 50, 25, 12]
        splits = data.load("digits").make_imbalanced(20, seed=0)
        assert splits.imbalance_factor() == pytest.approx(20, rel=0.15)
        assert len(splits.test) == 359
        with pytest.raises(ValueError, match="`factor` must be at least 1"):
            balanced.make_imbalanced(0.5, seed=0)


def slow_augment(image, pad, turns, top, left, mirrored):
    """One image at a time, the way it is described."""
    image = torch.rot90(image, turns, dims=(1, 2))
    if mirrored:
        image = image.flip(2)
    padded = torch.nn.functional.pad(image, (pad, pad, pad, pad))
    return padded[:, top : top + image.shape[1], left : left + image.shape[2]]


class TestAugment:
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
    @pytest.mark.parametrize(
        "augmentation",
        [
            Augmentation(pad=2, flip=True, rotate=True),
            Augmentation(pad=4, flip=True),
            Augmentation(pad=1),
            Augmentation(flip=True),
            Augmentation(rotate=True),
            Augmentation(),
        ],
        ids=str,
    )
    def test_equals_one_image_at_a_time(self, augmentation, dtype):
        images = part().inputs.to(dtype)
        draws = generator(11)
        turns = torch.randint(4, (60,), generator=draws) if augmentation.rotate else torch.zeros(60)
        span = 2 * augmentation.pad + 1
        top, left = (
            torch.randint(span, (60,), generator=draws) if augmentation.pad else torch.zeros(60)
            for _ in range(2)
        )
        mirrored = torch.randint(2, (60,), generator=draws) if augmentation.flip else torch.zeros(60)
        expected = torch.stack(
            [
                slow_augment(
                    image, augmentation.pad, *(int(draw[i]) for draw in (turns, top, left, mirrored))
                )
                for i, image in enumerate(images)
            ]
        )

        assert torch.equal(augment(images, augmentation, generator=generator(11)), expected)

    def test_every_offset_and_both_sides_occur(self):
        image = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
        image[0, 0, 2, 1] = 1
        many = augment(image.expand(4000, 1, 5, 5), Augmentation(pad=1, flip=True), generator=generator())
        places = {tuple(place) for place in many[:, 0].nonzero()[:, 1:].tolist()}

        assert places == {(y, x) for y in (1, 2, 3) for x in (0, 1, 2, 3, 4)}
        assert many.sum() == 4000

    def test_rectangles_can_be_cropped_and_not_turned(self):
        images = torch.ones(4, 1, 6, 8)

        assert augment(images, Augmentation(pad=2, flip=True), generator=generator()).shape == images.shape
        with pytest.raises(
            ValueError, match="only square images can be turned .* got 6 × 8; set rotate=False"
        ):
            augment(images, Augmentation(rotate=True), generator=generator())
        with pytest.raises(ValueError, match="only images"):
            augment(torch.ones(4, 6), Augmentation(flip=True), generator=generator())


class TestBatches:
    def test_every_sample_comes_once_with_its_own_label(self):
        source = part(count=50, classes=50)
        batches = Batches(part=source, batch_size=8, generator=generator())
        seen = torch.cat([labels for _, labels in batches])

        assert sorted(seen.tolist()) == list(range(50))
        assert len(batches) == 7
        for images, labels in batches:
            torch.testing.assert_close(images, source.inputs[labels] / 255)

    def test_drop_last(self):
        batches = Batches(part=part(count=50), batch_size=8, drop_last=True)

        assert len(batches) == len(list(batches)) == 6

    def test_epochs_differ_and_a_state_brings_one_back(self):
        draws = generator(3)
        batches = Batches(
            part=part(), batch_size=7, generator=draws, augmentation=Augmentation(pad=2, flip=True)
        )
        first = [x for x, _ in batches]
        state = draws.get_state()
        second = [x for x, _ in batches]
        draws.set_state(state)
        again = [x for x, _ in batches]

        assert not torch.equal(torch.cat(first), torch.cat(second))
        assert torch.equal(torch.cat(second), torch.cat(again))

    def test_batch_size_and_an_early_end_change_nothing(self):
        def epoch(size, draws):
            return Batches(
                part=part(),
                batch_size=size,
                generator=draws,
                augmentation=Augmentation(pad=2, flip=True, rotate=True),
            )

        small, large = (torch.cat([x for x, _ in epoch(size, generator(3))]) for size in (7, 60))
        assert torch.equal(small, large)
        broken, whole = generator(3), generator(3)
        next(iter(epoch(7, broken)))
        list(epoch(7, whole))
        assert torch.equal(broken.get_state(), whole.get_state())

    @pytest.mark.parametrize(
        "augmentation",
        [Augmentation(pad=2, flip=True), Augmentation(pad=1), Augmentation(flip=True)],
        ids=str,
    )
    def test_borders_of_all_images_or_of_a_batch_give_the_same(self, augmentation, monkeypatch):
        def epoch():
            batches = Batches(part=part(), batch_size=7, generator=generator(3), augmentation=augmentation)
            return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])

        whole = epoch()
        monkeypatch.setattr("macc.data._batches.BORDERED_BYTES", 0)
        for first, second in zip(whole, epoch(), strict=True):
            assert torch.equal(first, second)

    def test_global_randomness_is_not_touched(self):
        state = torch.get_rng_state()
        list(
            Batches(
                part=part(), batch_size=7, generator=generator(), augmentation=Augmentation(pad=2, flip=True)
            )
        )

        assert torch.equal(torch.get_rng_state(), state)

    def test_normalised_like_the_formula(self):
        normalisation = Normalisation((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
        (images, _), *_ = Batches(part=part(), batch_size=60, normalisation=normalisation)
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (normalisation.mean, normalisation.std))

        torch.testing.assert_close(images, (part().inputs / 255 - mean) / std)

    def test_fitted_statistics(self):
        images = torch.rand(1500, 2, 4, 4)
        for inputs, unit in ((images, 1), ((images * 255).to(torch.uint8), 255)):
            fitted = Normalisation.fit(inputs)
            std, mean = torch.std_mean(inputs.double() / unit, dim=(0, 2, 3), correction=0)

            assert fitted.mean == pytest.approx(mean.tolist())
            assert fitted.std == pytest.approx(std.tolist())

    def test_a_batch_never_aliases_the_data(self):
        features = torch.randn(8, 3)
        source = Part(inputs=features.clone(), labels=torch.arange(8) % 2)
        for normalisation in (Normalisation((0.0,) * 3, (1.0,) * 3), None):
            for inputs, _ in Batches(part=source, batch_size=8, normalisation=normalisation):
                inputs.add_(1)

        assert torch.equal(source.inputs, features)

    def test_features_with_a_large_mean_keep_their_digits(self):
        features = torch.tensor([[1e5 + k] for k in range(5)])
        fitted = Normalisation.fit(features)

        torch.testing.assert_close(fitted(features).squeeze(), (torch.arange(5) - 2) / 2**0.5)

    def test_tokens_stay_whole_numbers(self):
        source = Part(inputs=torch.ones(4, 7, dtype=torch.int32), labels=torch.arange(4))

        assert next(iter(Batches(part=source, batch_size=2)))[0].dtype == torch.int64

    def test_works_on_a_device_without_values(self):
        source = part()
        (images, labels), *_ = Batches(
            part=source,
            batch_size=8,
            generator=generator(),
            device="meta",
            normalisation=Normalisation((0.5,) * 3, (0.5,) * 3),
            augmentation=Augmentation(pad=2, flip=True, rotate=True),
        )

        assert images.device.type == labels.device.type == "meta"
        assert images.shape == (8, 3, 6, 6)

    def test_splits_prepare_their_own_batches(self):
        splits = data.load("digits")
        images, _ = next(iter(splits.batches("train", batch_size=1295, generator=generator())))

        assert images.mean().abs() < 1e-2
        assert images.std() == pytest.approx(1, abs=1e-2)

    def test_mistakes(self):
        with pytest.raises(ValueError, match="augmentation is random and needs a `generator`"):
            Batches(part=part(), batch_size=4, augmentation=Augmentation(flip=True))
        with pytest.raises(ValueError, match="`batch_size` must be at least 1, got 0"):
            Batches(part=part(), batch_size=0)
        with pytest.raises(ValueError, match="60 samples give no batch of 64; .* drop_last=False"):
            Batches(part=part(), batch_size=64, drop_last=True)
        with pytest.raises(ValueError, match="3 channels, the normalisation has 1"):
            list(Batches(part=part(), batch_size=4, normalisation=Normalisation((0.5,), (0.5,))))
        with pytest.raises(ValueError, match="`std` must be above 0 everywhere, got 0"):
            Normalisation((0.5,), (0.0,))
        with pytest.raises(ValueError, match="must be of one length, got 1 and 2"):
            Normalisation((0.5,), (0.1, 0.2))
        with pytest.raises(ValueError, match="`pad` must be a number of pixels"):
            Augmentation(pad=-1)


def test_every_token_id_needs_a_vector():
    tokens = data.Part(inputs=torch.ones(4, 30, dtype=torch.int64), labels=torch.arange(4) % 2)
    form = {
        "name": "t",
        "kind": "tokens",
        "classes": ("a", "b"),
        "train": tokens,
        "val": tokens,
        "test": tokens,
    }
    plain = data.Splits(**form, vocabulary=5)
    with_vectors = data.Splits(**form, vocabulary=5, vectors=torch.zeros(5, 3))

    assert plain.digest() != with_vectors.digest()
    with pytest.raises(ValueError, match="t has 5 token ids and 4 vectors; each id needs one"):
        data.Splits(**form, vocabulary=5, vectors=torch.zeros(4, 3))
