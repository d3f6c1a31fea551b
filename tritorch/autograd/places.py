"""Places in the user's program: which line made a call, for errors that name it."""
import os
import sys
import traceback

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Files(dict):
    """File name -> whether it belongs to this package: its frames are not the user's."""

    def __missing__(self, name):
        inside = self[name] = name.startswith(_HOME)
        return inside


inside = Files()


def user_place(depth=2):
    """(code, instruction) of the innermost frame outside of this package, from `depth` frames above on."""
    frame = sys._getframe(depth)
    code = frame.f_code
    while inside[code.co_filename] and frame.f_back is not None:
        frame = frame.f_back
        code = frame.f_code
    return code, frame.f_lasti


def stacklevel():
    """What the caller tells `warnings.warn`, so that the warning names the user's line."""
    frame, level = sys._getframe(1), 1
    while inside[frame.f_code.co_filename] and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    return level


def place(code, instruction):
    """file:line of an instruction."""
    line = code.co_firstlineno
    for start, stop, number in code.co_lines():
        if start <= instruction < stop and number is not None:
            line = number
    return f"{code.co_filename}:{line}"


def user_trace():
    """The calls that lead to the user's line, as text."""
    frames = traceback.extract_stack()
    while len(frames) > 1 and inside[frames[-1].filename]:
        frames.pop()
    return "".join(traceback.format_list(frames))
