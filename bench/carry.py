"""bench carry pack|unpack FILE: the compiled kernels of the cache as one small file, to take them to another machine.

Each file of the cache is compressed by itself; here many that resemble each other are compressed together, which takes a third as much.
"""
import json
import lzma
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PARTS = 16                                                       # which are unpacked by as many cores


def main(args):
    if len(args.families) != 2 or args.families[0] not in ("pack", "unpack"):
        print("carry: expected pack FILE or unpack FILE")
        return 2
    from tritorch.cuda.compiler import cache_folder

    folder = cache_folder() / "kernels"
    count = {"pack": pack, "unpack": unpack}[args.families[0]](Path(args.families[1]), folder)
    print(f"{count} kernels, {Path(args.families[1]).stat().st_size / 1e6:.1f} MB, {folder}")
    return 0


def pack(path, folder):
    """Write the kernels in a folder to a file; how many they are."""
    from tritorch.cuda import compiler

    kernels = {file.name: kernel for file in folder.glob("*.z") if (kernel := compiler.read(file))}
    names = sorted(kernels, key=lambda name: (kernels[name].name, name))                   # those of one source beside each other
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive, ThreadPoolExecutor() as pool:
        parts = [[(name, kernels[name]) for name in names[len(names) * k // PARTS:len(names) * (k + 1) // PARTS]] for k in range(PARTS)]
        for k, data in enumerate(pool.map(packed, parts)):
            archive.writestr(f"{k}.xz", data)
    return len(names)


def packed(kernels):
    """A line of JSON that says what follows, then all machine code, then all PTX."""
    fields = [{**vars(kernel), "cubin": len(kernel.cubin), "packed_ptx": len(kernel.ptx.encode())} for _, kernel in kernels]
    head = json.dumps([[name, field] for (name, _), field in zip(kernels, fields)]).encode()
    return lzma.compress(b"".join([head, b"\n", *[k.cubin for _, k in kernels], *[k.ptx.encode() for _, k in kernels]]))


def unpack(path, folder):
    """Put the kernels of a file into a folder; how many they are."""
    with zipfile.ZipFile(path) as archive, ThreadPoolExecutor() as pool:
        return sum(pool.map(lambda name: unpacked(archive.read(name), folder), archive.namelist()))


def unpacked(data, folder):
    from tritorch.cuda import compiler

    head, _, rest = lzma.decompress(data).partition(b"\n")
    kernels, place = json.loads(head), 0
    for field in ("cubin", "packed_ptx"):
        for _, fields in kernels:
            place, fields[field] = place + fields[field], rest[place:place + fields[field]]
    for name, fields in kernels:
        compiler.write(folder / name, compiler.Compiled(**{**fields, "packed_ptx": zlib.compress(fields["packed_ptx"], 1)}))
    return len(kernels)
