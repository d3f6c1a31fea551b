"""The old name of `hub.load_state_dict_from_url`."""
from tritorch.hub import load_state_dict_from_url as load_url
from tritorch.hub import tqdm

__all__ = ["load_url", "tqdm"]
