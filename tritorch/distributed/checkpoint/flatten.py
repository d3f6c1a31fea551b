"""State dicts as flat dictionaries: names that join the keys on the way through the containers with dots."""
from collections.abc import Mapping

from tritorch.errors import check
from tritorch.tensor import Tensor


def flattened(state_dict):
    """({name: tensor or value}, {name: its way: keys of dictionaries, places in lists}). Lists without tensors or dictionaries in them,
    and tuples, are values. ValueError for two ways of one name."""
    out, ways = {}, {}
    for key, top in state_dict.items():
        for way, value in _ends((str(key),), top):
            name = ".".join(map(str, way))
            check(name not in out, "checkpoint", "one value for each name", f"two for {name!r}", error=ValueError)
            out[name], ways[name] = value, list(way)
    return out, ways


def _ends(way, value):
    """(way, value) of all that lies at the end of this way or beyond."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _ends((*way, str(key)), inner)
    elif isinstance(value, list) and any(map(_goes_on, value)):
        for place, inner in enumerate(value):
            yield from _ends((*way, place), inner)
    else:
        yield way, value


def _goes_on(value):
    return isinstance(value, (Tensor, Mapping)) or isinstance(value, list) and any(map(_goes_on, value))


def put(state_dict, way, value):
    """Set a value at the end of its way, which there is; keys of dictionaries need not be strings there."""
    here = state_dict
    for step in way[:-1]:
        here = here[_key(here, step)]
    here[_key(here, way[-1])] = value


def _key(container, step):
    if isinstance(container, Mapping) and step not in container:
        return next((key for key in container if str(key) == step), step)
    return step


def nested(flat, ways):
    """The containers that a flat dictionary came from."""
    out = {}
    for name, value in flat.items():
        here, way = out, ways[name]
        for step, after in zip(way, way[1:]):
            here = _inside(here, step, {} if isinstance(after, str) else [])
        _inside(here, way[-1], value)
    return out


def _inside(container, step, value):
    """What is at a step; `value`, if nothing was."""
    if isinstance(container, dict):
        return container.setdefault(step, value)
    container += [None] * (step + 1 - len(container))
    if container[step] is None:
        container[step] = value
    return container[step]
