"""What pyproject.toml cannot say: the folder triton_kernels is installed as tritorch_kernels. OpenAI's package triton_kernels, which
vLLM and others install, has that name in site-packages; of two packages in one folder each would overwrite the other's files."""
from setuptools import find_namespace_packages, setup

setup(packages=[*find_namespace_packages(include=["tritorch", "tritorch.*"]), "tritorch_kernels"],
      package_dir={"tritorch_kernels": "triton_kernels"})
