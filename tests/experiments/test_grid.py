"""Grids inside text: what they expand to, and what is refused."""

import pytest

from macc.experiments import grid
from macc.experiments.spec import half_of


class TestGrids:
    def test_every_combination_in_order(self):
        texts = {"loss": "Focal(gamma={1,2}) + {5, 10}*MACC", "head.p": "{0.2, 0.5}"}
        axes = grid.axes(texts, {})

        assert [axis.name for axis in axes] == ["gamma", "weight of MACC", "head.p"]
        assert grid.count(axes) == len(grid.points(axes)) == 8
        assert grid.points(axes)[1] == {"gamma": 1, "weight of MACC": 5, "head.p": 0.5}
        assert grid.fill("loss", texts["loss"], grid.points(axes)[-1], {}) == "Focal(gamma=2) + 10*MACC"

    def test_a_named_grid_used_twice_is_one_axis(self):
        axes = grid.axes({"loss": "CrossEntropy + {w}*MACC + {w}*MDCA"}, {"w": [1, 2]})

        assert axes == [grid.Axis("w", (1, 2))]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("Focal(gamma={1,2)", "a brace is open or nested"),
            ("Focal(gamma={1,{2}})", "a brace is open or nested"),
            ("Focal(gamma={1,})", "holds ''"),
            ("Focal(gamma={1,1})", "has a value twice"),
            ("Focal(gamma={1,nan+1})", "holds 'nan+1'"),
            ("Focal(gamma={__import__('os')})", "holds"),
            ("Focal(gamma={unknown})", "no grid is called 'unknown'"),
            ("Focal(gamma={1,2}) + {1,2}*MDCA + {1,3}*MDCA", "two different grids vary 'weight of MDCA'"),
        ],
    )
    def test_mistakes(self, text, message):
        with pytest.raises(ValueError, match="^loss: ") as caught:
            grid.axes({"loss": text}, {})
        assert message in str(caught.value)

    def test_half_of_training(self):
        assert half_of("CrossEntropy + 3*MACC(warmup = half)", 481) == "CrossEntropy + 3*MACC(warmup=240)"
