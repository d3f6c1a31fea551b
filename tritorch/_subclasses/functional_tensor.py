"""The mode under which PyTorch traces functions without writes into arguments. It is never on: the name is for registrations."""


class FunctionalTensorMode:
    """What `register_torch_dispatch` is given for traced calls, of which there are none."""
