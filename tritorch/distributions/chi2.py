"""The chi-squared distribution: a sum of squares of normal numbers."""
from tritorch.distributions import constraints
from tritorch.distributions.gamma import Gamma


class Chi2(Gamma):
    """Gamma(df / 2, 1 / 2).

    >>> import tritorch as torch; torch.distributions.Chi2(3.0).variance
    tensor(6.)
    """

    arg_constraints, _parameters = {"df": constraints.positive}, ("concentration", "rate")

    def __init__(self, df, validate_args=None):
        super().__init__(0.5 * df, 0.5, validate_args)

    df = property(lambda self: self.concentration * 2, doc="How many squares.")
