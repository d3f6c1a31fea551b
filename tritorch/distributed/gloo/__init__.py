"""The backend "gloo": collectives of tensors on the CPU over sockets, written in Python; tensors on a GPU go through page-locked memory.

`mesh` connects the ranks of a group, `engine` is the thread that sends and receives, `schedules` says who sends what to whom in which
order, `arithmetic` how two arrays become one, and `group` makes a process group of these.
"""
