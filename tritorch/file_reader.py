"""The records of a file that PyTorch's `torch.save` wrote, for packages that read them one by one."""
import zipfile


class PyTorchFileReader:
    """An archive of `torch.save`, by its path or a file open for reading. `tritorch.load` is what makes tensors of it."""

    def __init__(self, name_or_buffer):
        self._archive = zipfile.ZipFile(name_or_buffer)
        self._root = self._archive.namelist()[0].partition("/")[0] + "/"

    def get_all_records(self):
        """The names of all records."""
        return [name.removeprefix(self._root) for name in self._archive.namelist()]

    def has_record(self, name):
        """Whether there is a record of that name."""
        return name in self.get_all_records()

    def get_record(self, name):
        """The bytes of a record. Raises RuntimeError if there is none."""
        if not self.has_record(name):
            raise RuntimeError(f"get_record: expected one of {self.get_all_records()}, got {name!r}")
        return self._archive.read(self._root + name)
