"""Tables of events, in the form of PyTorch's."""
from tritorch.errors import sentence
from tritorch.profiler.events import DeviceType, microseconds

COLUMN, SPACE, INDENT = 12, "  ", 4                                      # width of a number, between columns, left of names
PREFIXES = "", "K", "M", "G", "T", "P"
SORTED_BY = ("count", "cpu_time", "cpu_time_total", "self_cpu_time_total", "device_time", "device_time_total", "self_device_time_total",
             "cuda_time", "cuda_time_total", "self_cuda_time_total", "cpu_memory_usage", "self_cpu_memory_usage", "device_memory_usage",
             "self_device_memory_usage", "cuda_memory_usage", "self_cuda_memory_usage", "flops")


def table(events, sort_by, row_limit, widths, header, top_level_events_only, time_unit):
    """See EventList.table; `widths` are the most that names, shapes and stacks get."""
    if sort_by is not None and sort_by not in SORTED_BY:
        raise AttributeError(sentence("table", f"sort_by among {', '.join(SORTED_BY)}", repr(sort_by)))
    if not events:
        return ""
    rows = sorted(events, key=lambda e: getattr(e, sort_by), reverse=True) if sort_by else list(events)
    rows = [e for e in rows if not (top_level_events_only and e.cpu_parent is not None)]
    rows = rows if row_limit < 0 else rows[:row_limit]
    host = sum(e.self_cpu_time_total for e in events)
    device = sum(e.self_device_time_total for e in events if e.device_type is DeviceType.CUDA)
    columns = columns_of(events, rows, host, device, widths, time_unit)
    rule = SPACE.join("-" * width for _, width, _ in columns) + SPACE
    lines = [] if header is None else ["=" * len(rule), header]
    lines += [rule, SPACE.join(title.rjust(width) for title, width, _ in columns) + SPACE, rule]
    for e in rows:
        lines.append(SPACE.join(_cut(show(e), width).rjust(width) for _, width, show in columns) + SPACE)
        lines += [SPACE.join([" " * width for _, width, _ in columns[:-1]] + [_cut(call, columns[-1][1]).rjust(columns[-1][1])])
                  for call in (e.stack[1:] if events.stacked else ())]
    lines += [rule, f"Self CPU time total: {microseconds(host, time_unit)}"]
    if device:
        lines.append(f"Self CUDA time total: {microseconds(device, time_unit)}")
    return "\n".join(lines) + "\n"


def columns_of(events, rows, host, device, widths, unit):
    """(title, width, what makes the text of an entry) of each column that has something to say."""
    def time(field):
        return lambda e: microseconds(getattr(e, field), unit)

    def share(field, total):
        return lambda e: f"{100 * getattr(e, field) / total:.2f}%" if total else "--"

    def size(field):
        return lambda e: memory(getattr(e, field))

    names, shapes, calls = (max([least, *[min(len(text(e)) + INDENT, most) for e in rows]]) for least, most, text in zip(
        (COLUMN, COLUMN, COLUMN), widths, (lambda e: e.name, lambda e: str(e.input_shapes), lambda e: max(e.stack, key=len, default=""))))
    found = [("Name", names, lambda e: e.name), ("Self CPU %", COLUMN, share("self_cpu_time_total", host)),
             ("Self CPU", COLUMN, time("self_cpu_time_total")), ("CPU total %", COLUMN, share("cpu_time_total", host)),
             ("CPU total", COLUMN, time("cpu_time_total")), ("CPU time avg", COLUMN, time("cpu_time"))]
    if any(e.self_device_time_total for e in events):
        found += [("Self CUDA", COLUMN, time("self_device_time_total")), ("Self CUDA %", COLUMN, share("self_device_time_total", device)),
                  ("CUDA total", COLUMN, time("device_time_total")), ("CUDA time avg", COLUMN, time("device_time"))]
    if events.memory:
        found += [("CPU Mem", COLUMN, size("cpu_memory_usage")), ("Self CPU Mem", COLUMN, size("self_cpu_memory_usage"))]
        if any(e.self_device_memory_usage for e in events):
            found += [("CUDA Mem", COLUMN, size("device_memory_usage")), ("Self CUDA Mem", COLUMN + 1, size("self_device_memory_usage"))]
    found.append(("# of Calls", COLUMN, lambda e: str(e.count)))
    if events.shaped:
        found.append(("Input Shapes", shapes, lambda e: str(e.input_shapes)))
    most = max(e.flops for e in events)
    if most:
        power = min((len(str(most)) - 1) // 3, len(PREFIXES) - 1)
        found.append((f"Total {PREFIXES[power]}FLOPs", COLUMN + 1, lambda e: f"{e.flops / 1000 ** power:.3f}" if e.flops else "--"))
    if events.stacked:
        found.append(("Source Location", max(calls, 15), lambda e: e.stack[0] if e.stack else ""))
    return found


def _cut(text, width):
    return text if len(text) <= width else text[:width - 3] + "..."


def memory(nbytes):
    """Bytes as text.

    >>> memory(528), memory(-1536)
    ('528 B', '-1.50 KB')
    """
    for power, unit in ((3, "GB"), (2, "MB"), (1, "KB")):
        if abs(nbytes) >= 1024 ** power:
            return f"{nbytes / 1024 ** power:.2f} {unit}"
    return f"{nbytes} B"
