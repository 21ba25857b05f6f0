"""The MC-dropout head: mean and variance of the logits under dropout of the last features.

``attach`` puts it into a model someone already has; in training the model then returns
:class:`LogitMoments`, in evaluation the plain logits it returned before.
"""

from macc.heads._attach import attach as attach
from macc.heads._attach import conventional_moments as conventional_moments
from macc.heads._attach import detach as detach
from macc.heads._attach import find_classifier as find_classifier
from macc.heads._attach import logits_in as logits_in
from macc.heads._attach import moments as moments
from macc.heads._conv import MCDropoutConv2d as MCDropoutConv2d
from macc.heads._modules import Estimator as Estimator
from macc.heads._modules import Head as Head
from macc.heads._modules import MCDropout as MCDropout
from macc.heads._modules import MCDropoutLinear as MCDropoutLinear
from macc.heads._moments import LogitMoments as LogitMoments
from macc.heads._moments import analytic_linear as analytic_linear
from macc.heads._moments import at_least_float32 as at_least_float32
from macc.heads._moments import inside_transform as inside_transform
