"""The MC-dropout head: moments, gradients, modes, precision, and the tools people use it with."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import macc
import reference
from macc import LogitMoments, MCDropout, MCDropoutLinear
from macc.heads import _moments


def features(rows=4, width=16, seed=0, dtype=torch.float64):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def head(width=16, classes=3, *, bias=True, seed=0, dtype=torch.float64, **knobs) -> MCDropoutLinear:
    torch.manual_seed(seed)
    return MCDropoutLinear(width, classes, bias=bias, dtype=dtype, **knobs)


def loss_of(output: LogitMoments) -> torch.Tensor:
    """A smooth function of both moments."""
    return (output.probs * output.certainty).sum()


class TestSampled:
    def test_is_the_paper_on_the_masks_that_were_drawn(self, monkeypatch):
        layer, x = head(p=0.3, samples=6), features()
        drawn = []
        plain = _moments.dropped

        def spy(*args):
            drawn.append(plain(*args))
            return drawn[-1]

        monkeypatch.setattr(_moments, "dropped", spy)
        output = layer(x)
        (dropped,) = drawn
        masks = (dropped != 0).double()

        assert dropped.shape == (6, 4, 16)
        rate = 1 - round(0.7 * 2**16) / 2**16  # sixteen random bits decide a unit
        torch.testing.assert_close(dropped, masks * x / (1 - rate))
        mean, variance = reference.moments(
            x.tolist(), layer.weight.tolist(), layer.bias.tolist(), masks.tolist(), rate
        )
        torch.testing.assert_close(output.mean, torch.tensor(mean, dtype=torch.float64))
        torch.testing.assert_close(output.variance, torch.tensor(variance, dtype=torch.float64))

    @pytest.mark.parametrize("p", [0.001, 0.2, 0.5, 0.9])
    def test_units_are_dropped_at_the_rate_and_the_mean_is_kept(self, p):
        torch.manual_seed(0)
        dropped = _moments.dropped(torch.ones(1001, 101, dtype=torch.float64), p, 10)
        units = dropped.numel()

        assert (dropped == 0).sum() == pytest.approx(
            p * units, abs=5 * (p * (1 - p) * units) ** 0.5 + units / 2**16
        )
        assert dropped.mean() == pytest.approx(1, abs=5 * (p / (1 - p) / units) ** 0.5)

    def test_masks_are_independent_per_pass_row_and_unit(self):
        """Correlations of keeping, seen through the head, vanish between any two places of a
        mask.
        """
        layer = MCDropoutLinear(4, 4, bias=False, p=0.5, samples=2, dtype=torch.float64)
        layer.weight.data = torch.eye(4, dtype=torch.float64)
        x = torch.ones(3, 4, dtype=torch.float64)
        # With two passes the mean is (a + b) / 2 and the variance (a - b)² / 2 of the units' two
        # values 0 or 2.
        torch.manual_seed(0)
        outputs = [layer(x) for _ in range(4000)]
        means = torch.stack([output.mean.flatten() for output in outputs]) - 1
        correlation = (means.T @ means) / len(means) / 0.5
        differ = torch.stack([output.variance.flatten() for output in outputs]) > 0

        assert (correlation - torch.eye(12)).abs().max() < 6 / 4000**0.5
        assert differ.double().mean() == pytest.approx(0.5, abs=0.02)  # two passes keep a unit independently

    @pytest.mark.parametrize("p", [0.2, 0.3, 0.5])
    @pytest.mark.parametrize("bias", [True, False])
    def test_converges_to_the_closed_form_at_the_monte_carlo_rate(self, p, bias):
        samples = 20_000
        layer, x = head(p=p, bias=bias), features()
        exact = layer.moments(x, estimator="analytic")
        sampled = layer.moments(x, samples=samples)
        # The variance of a sample variance is (kurtosis - 1) σ⁴ / S; a sum of bounded terms has
        # kurtosis < 6 here.
        mean_error = (exact.variance / samples).sqrt()
        variance_error = exact.variance * (5 / samples) ** 0.5

        assert ((sampled.mean - exact.mean).abs() / mean_error).max() < 4.5
        assert ((sampled.variance - exact.variance).abs() / variance_error).max() < 4.5
        assert ((sampled.mean - exact.mean).abs() / mean_error).mean() > 0.3  # and the noise is of that size

    @pytest.mark.parametrize("p", [0.2, 0.3, 0.5])
    @pytest.mark.parametrize("bias", [True, False])
    def test_gradients_converge_to_the_closed_form(self, p, bias):
        """Of a linear function of both moments, so that the sampled gradient has no bias at any
        N.
        """
        layer = head(p=p, bias=bias)
        x = features().requires_grad_()
        a, b = features(rows=4, width=3, seed=1), features(rows=4, width=3, seed=2)

        def gradient(**how):
            mean, variance = layer.moments(x, **how)
            return torch.cat(
                [g.flatten() for g in torch.autograd.grad((a * mean + b * variance).sum(), [x, layer.weight])]
            )

        exact = gradient(estimator="analytic")
        draws = torch.stack([gradient(samples=500) for _ in range(40)])
        error = draws.std(dim=0) / 40**0.5

        assert ((draws.mean(dim=0) - exact).abs() / error).max() < 5
        assert error.max() < 0.05 * exact.abs().max()

    def test_two_calls_draw_different_masks(self):
        layer, x = head(), features()

        assert not torch.equal(layer(x).variance, layer(x).variance)

    def test_is_repeated_by_the_seed(self):
        layer, x = head(), features()
        torch.manual_seed(3)
        first = layer(x)
        torch.manual_seed(3)

        torch.testing.assert_close(layer(x), first, rtol=0, atol=0)


class TestAnalytic:
    def test_closed_form(self):
        layer, x = head(p=0.2, estimator="analytic"), features()
        output = layer(x)
        expected = [
            [sum((w * v) ** 2 for w, v in zip(row, f, strict=True)) / 4 for row in layer.weight.tolist()]
            for f in x.tolist()
        ]

        torch.testing.assert_close(output.mean, F.linear(x, layer.weight, layer.bias))
        torch.testing.assert_close(output.variance, torch.tensor(expected, dtype=torch.float64))

    def test_gradcheck(self):
        x = features(rows=2, width=4).requires_grad_()
        layer = head(width=4, estimator="analytic")

        assert torch.autograd.gradcheck(lambda f, *_: loss_of(layer(f)), (x, layer.weight, layer.bias))
        assert torch.autograd.gradgradcheck(lambda f, *_: loss_of(layer(f)), (x, layer.weight, layer.bias))

    @pytest.mark.parametrize("moment", ["mean", "variance"])
    @pytest.mark.parametrize("frozen", ["nothing", "weight", "bias", "features"])
    @pytest.mark.parametrize("shape", [(4, 16), (16,), (2, 3, 16)])
    def test_the_gradient_is_that_of_the_plain_formula(self, moment, frozen, shape):
        layer = head(estimator="analytic")
        parts = {"weight": layer.weight, "bias": layer.bias, "features": torch.randn(shape).double()}
        for name, part in parts.items():
            part.requires_grad_(name != frozen)
        wanted = [part for name, part in parts.items() if name != frozen]
        x = parts["features"]
        plain = {
            "mean": F.linear(x, layer.weight, layer.bias),
            "variance": F.linear(x.square() / 4, layer.weight.square()),
        }

        def gradients(value):
            return torch.autograd.grad(value.sin().sum(), wanted, allow_unused=True)

        for own, expected in zip(gradients(getattr(layer(x), moment)), gradients(plain[moment]), strict=True):
            torch.testing.assert_close(own, expected)

    @pytest.mark.parametrize("estimator", ["sampled", "analytic"])
    def test_no_dropout_no_variance(self, estimator):
        layer, x = head(p=0, estimator=estimator), features()

        torch.testing.assert_close(layer(x).mean, layer.eval()(x))
        torch.testing.assert_close(layer.train()(x).variance, torch.zeros(4, 3, dtype=torch.float64))


class TestModes:
    @pytest.mark.parametrize("estimator", ["sampled", "analytic"])
    def test_train_gives_moments_and_eval_the_plain_layer(self, estimator):
        layer, x = head(estimator=estimator), features()

        assert isinstance(layer(x), LogitMoments)
        assert type(layer.eval()(x)) is torch.Tensor
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=0, atol=0)
        assert isinstance(layer.moments(x), LogitMoments)

    def test_one_sample_is_ordinary_dropout(self):
        layer, x = head(p=0.4, samples=1), features()
        torch.manual_seed(5)
        output = layer(x)
        torch.manual_seed(5)

        torch.testing.assert_close(output, F.linear(F.dropout(x, 0.4), layer.weight, layer.bias))
        assert layer.moments(x, samples=10).variance.shape == (4, 3)
        assert layer.moments(x, estimator="analytic").variance.shape == (4, 3)
        with pytest.raises(ValueError, match="at least two dropout masks and this head has samples=1"):
            layer.moments(x)

    def test_asking_for_samples_asks_for_sampling(self):
        layer, x = head(estimator="analytic"), features()

        assert not torch.equal(layer.moments(x, samples=2).variance, layer.moments(x).variance)
        with pytest.raises(ValueError, match="`samples` must be a whole number"):
            layer.moments(x, samples=0)
        with pytest.raises(ValueError, match="'sampled' or 'analytic', got 'exact'"):
            layer.moments(x, estimator="exact")
        with pytest.raises(ValueError, match="'sampled' or 'analytic', got 'exact'"):
            MCDropout(nn.Linear(16, 3).double()).moments(x, estimator="exact")

    def test_leading_axes_are_kept(self):
        layer = head()
        x = features(rows=6).reshape(2, 3, 16)
        output = layer(x)

        assert output.mean.shape == output.variance.shape == (2, 3, 3)
        torch.testing.assert_close(layer.moments(x, estimator="analytic").mean, layer.eval()(x))

    def test_probs_and_certainty(self):
        output = head()(features())

        torch.testing.assert_close(output.probs, output.mean.softmax(-1))
        torch.testing.assert_close(output.certainty, 1 - output.variance.tanh())

    def test_treating_the_output_as_a_tensor_says_what_it_is(self):
        output = head()(features())
        with pytest.raises(AttributeError, match=r"use `output.mean.argmax`, or `model.eval\(\)`"):
            output.argmax(1)
        with pytest.raises(AttributeError, match="no attribute 'frobnicate'$"):
            output.frobnicate  # noqa: B018


class TestKnobs:
    @pytest.mark.parametrize("p", [-0.1, 1, 1.5, float("nan"), "0.2"])
    def test_rate(self, p):
        with pytest.raises(ValueError, match=r"`p` must lie in \[0, 1\)"):
            MCDropoutLinear(4, 3, p=p)
        with pytest.raises(ValueError, match=r"`p` must lie in \[0, 1\)"):
            macc.attach(nn.Sequential(nn.Linear(4, 3)), p=p)

    @pytest.mark.parametrize("samples", [0, -1, 2.5, True])
    def test_samples(self, samples):
        with pytest.raises(ValueError, match="`samples` must be a whole number"):
            MCDropoutLinear(4, 3, samples=samples)

    def test_estimator(self):
        with pytest.raises(ValueError, match="'sampled' or 'analytic', got 'exact'"):
            MCDropoutLinear(4, 3, estimator="exact")
        with pytest.raises(ValueError, match="`samples=1` is ordinary dropout"):
            MCDropoutLinear(4, 3, estimator="analytic", samples=1)

    def test_width(self):
        with pytest.raises(ValueError, match=r"16 values a row, got shape \(4, 15\)"):
            head()(features(width=15))


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("estimator", ["sampled", "analytic"])
    def test_autocast_computes_moments_in_single(self, dtype, estimator):
        layer, x = head(dtype=torch.float32, estimator=estimator), features(dtype=torch.float32)
        torch.manual_seed(0)
        expected = layer(x.to(dtype).float())
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=dtype):
            output = layer(x.to(dtype))
            loss_of(output).backward()

        assert output.mean.dtype == output.variance.dtype == torch.float32
        torch.testing.assert_close(output, expected)
        assert layer.weight.grad.isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_weights(self, dtype):
        layer = head(dtype=torch.float32).to(dtype)
        output = layer(features(dtype=dtype))
        loss_of(output).backward()

        assert output.variance.dtype == torch.float32
        assert layer.weight.grad.dtype == dtype
        assert layer.eval()(features(dtype=dtype)).dtype == dtype

    @pytest.mark.parametrize(
        "make",
        [
            lambda: head(dtype=torch.float32),
            lambda: head(dtype=torch.float32, estimator="analytic"),
            lambda: MCDropout(nn.Linear(16, 3)),
        ],
    )
    def test_meta_device(self, make):
        layer = make().to("meta")
        output = layer(torch.empty(4, 16, device="meta"))
        loss_of(output).backward()

        assert output.variance.shape == (4, 3)
        assert next(layer.parameters()).grad.device.type == "meta"
        assert layer.eval()(torch.empty(4, 16, device="meta")).shape == (4, 3)


class TestBigBatches:
    def test_chunks_give_the_same_distribution_and_the_gradient_of_the_masks_they_drew(self, monkeypatch):
        """Each chunk is a call of its own; drawing again in the backward pass must give the same
        masks.
        """
        layer, x = head(p=0.3, samples=5), features(rows=10)
        monkeypatch.setattr(_moments, "MASK_BYTES", 3 * 5 * 16 * 8)  # three rows a chunk
        x_chunked = x.clone().requires_grad_()
        torch.manual_seed(7)
        chunked = layer(x_chunked)
        loss_of(chunked).backward()
        chunked_grads = [x_chunked.grad, layer.weight.grad.clone(), layer.bias.grad.clone()]
        layer.zero_grad()

        monkeypatch.setattr(_moments, "MASK_BYTES", 2**30)
        x_whole = x.clone().requires_grad_()
        torch.manual_seed(7)
        parts = [layer(rows) for rows in x_whole.split(3)]
        whole = LogitMoments(*(torch.cat(part) for part in zip(*parts, strict=True)))
        loss_of(whole).backward()

        torch.testing.assert_close(chunked, whole)
        for ours, expected in zip(
            chunked_grads, [x_whole.grad, layer.weight.grad, layer.bias.grad], strict=True
        ):
            torch.testing.assert_close(ours, expected)

    def test_peak_memory_stays_near_one_chunk(self):
        """800 MB of masks: the peak grows by the chunk, not by the batch."""
        code = (
            "import resource, torch, macc\n"
            "head = macc.MCDropoutLinear(20_000, 4)\n"
            "x = torch.randn(1000, 20_000, requires_grad=True)\n"
            "(head.eval()(x).sum() + (x * x).sum()).backward()\n"
            "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
            "before = peak()\n"
            "output = head.train()(x)\n"
            "(output.mean.sum() + output.variance.sum()).backward()\n"
            "print(peak() - before)\n"
        )
        grown = float(
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        )

        assert (
            grown < 1100
        )  # 256 MB of features under masks, as much again for gradients; unchunked it takes over 2000


class TestTools:
    def test_state_dict_moves_both_ways(self):
        plain, x = nn.Linear(16, 3, dtype=torch.float64), features()
        layer = head(seed=9)
        layer.load_state_dict(plain.state_dict())
        torch.testing.assert_close(layer.eval()(x), plain(x))

        other = nn.Linear(16, 3, dtype=torch.float64)
        other.load_state_dict(layer.state_dict())
        torch.testing.assert_close(other(x), plain(x))

    def test_deepcopy_and_pickle(self):
        layer, x = head(p=0.3, samples=4), features()
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert (twin.p, twin.samples, twin.estimator) == (0.3, 4, "sampled")
            torch.testing.assert_close(twin.eval()(x), layer.eval()(x))

    @pytest.mark.parametrize("estimator", ["sampled", "analytic"])
    def test_compile_in_one_graph(self, estimator):
        torch._dynamo.reset()
        model = macc.attach(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)), estimator=estimator)
        criterion = macc.losses.Focal() + 10 * macc.losses.MACC(warmup=10)
        x, y = features(dtype=torch.float32), torch.tensor([0, 1, 2, 0])

        @torch.compile(fullgraph=True, backend="aot_eager")
        def step(x, y):
            return criterion(model(x), y)

        torch.manual_seed(0)
        for _ in range(3):
            step(x, y).backward()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        output = compiled(x)

        assert isinstance(output, LogitMoments)
        assert output.probs.shape == (4, 3)
        assert model[0].weight.grad.abs().sum() > 0
        assert criterion.penalties[0].penalty.step == 3
        torch.testing.assert_close(compiled.eval()(x), model.eval()(x))

    def test_compile_with_inductor(self):
        """Forward and backward of the sampled head; the masks differ, so their mean is compared."""
        torch._dynamo.reset()
        model = macc.attach(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)), samples=4000)
        x = features(dtype=torch.float32)
        output = torch.compile(model, fullgraph=True)(x)
        loss_of(output).backward()
        exact = model[2].moments(model[:2](x), estimator="analytic")

        assert ((output.mean - exact.mean).abs() / (exact.variance / 4000).sqrt()).max() < 4.5
        assert model[0].weight.grad.abs().sum() > 0

    def test_export_of_the_eval_model(self):
        model = macc.attach(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))).eval()
        x = features(dtype=torch.float32)
        exported = torch.export.export(model, (x,)).module()

        torch.testing.assert_close(exported(x), model(x))

    def test_functional_call_and_grad(self, monkeypatch):
        layer, x = head(estimator="analytic"), features()
        other = {name: 2 * value.detach() for name, value in layer.named_parameters()}
        output = torch.func.functional_call(layer, other, (x,))
        torch.testing.assert_close(output.variance, 4 * layer(x).variance)

        def loss(parameters):
            return loss_of(torch.func.functional_call(layer, parameters, (x,)))

        grads = torch.func.grad(loss)(other)
        assert grads["weight"].shape == (3, 16)
        monkeypatch.setattr(_moments, "MASK_BYTES", 10 * 16 * 8)  # a transform cannot recompute chunks
        layer.estimator = "sampled"
        assert torch.func.grad(loss)(other)["weight"].shape == (3, 16)

        # Chunks recomputed in the backward pass use the parameters of the call, not the module's.
        leaves = {name: value.requires_grad_() for name, value in other.items()}
        grads = []
        for size in (10 * 16 * 8, 2**30):
            monkeypatch.setattr(_moments, "MASK_BYTES", size)
            torch.manual_seed(0)
            rows = (
                [torch.func.functional_call(layer, leaves, (row,)) for row in x.split(1)]
                if size == 2**30
                else [torch.func.functional_call(layer, leaves, (x,))]
            )
            grads.append(torch.autograd.grad(sum(loss_of(output) for output in rows), [leaves["weight"]])[0])
        torch.testing.assert_close(*grads)

    def test_vmap_needs_different_randomness(self):
        layer, x = head(), features().unsqueeze(1)
        with pytest.raises(RuntimeError, match="randomness"):
            torch.func.vmap(layer)(x)

        assert torch.func.vmap(layer, randomness="different")(x).mean.shape == (4, 1, 3)


class TestMCDropout:
    def test_samples_any_head(self):
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        layer, x = MCDropout(inner, p=0.3, samples=7), features()
        output = layer(x)

        assert output.mean.shape == output.variance.shape == (4, 3)
        assert type(layer.eval()(x)) is torch.Tensor
        torch.testing.assert_close(layer(x), inner(x))
        loss_of(output).backward()
        assert inner[0].weight.grad.abs().sum() > 0

    def test_around_one_linear_layer_it_is_the_linear_head(self):
        linear = nn.Linear(16, 3, dtype=torch.float64)
        x = features()
        torch.manual_seed(2)
        general = MCDropout(linear, p=0.3)(x)
        torch.manual_seed(2)
        special = MCDropoutLinear.from_linear(linear, p=0.3)(x)

        torch.testing.assert_close(general, special)

    def test_convolutional_features(self):
        layer = MCDropout(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)), samples=4)

        assert layer(torch.randn(2, 5, 6, 6)).mean.shape == (2, 3)

    def test_one_sample_and_refusals(self):
        layer = MCDropout(nn.Linear(4, 3), samples=1)

        assert type(layer(torch.ones(2, 4))) is torch.Tensor
        with pytest.raises(ValueError, match="at least two dropout masks"):
            layer.moments(torch.ones(2, 4))
        with pytest.raises(ValueError, match="closed form exists for one linear layer only"):
            layer.moments(torch.ones(2, 4), estimator="analytic")

    def test_autocast(self):
        layer = MCDropout(nn.Linear(16, 3))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = layer(features(dtype=torch.bfloat16))

        assert output.variance.dtype == torch.float32
