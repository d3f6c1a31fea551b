"""Checkpoints from the web under the old names of torch.utils.model_zoo: see tritorch.hub."""
from tritorch.hub import load_state_dict_from_url as load_url

__all__ = ["load_url"]
