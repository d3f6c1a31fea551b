"""The classes of `tritorch.ops.namespace.name` and its overloads, where PyTorch has them."""
from tritorch import ops
from tritorch.ops.namespaces import OpNamespace as _OpNamespace
from tritorch.ops.namespaces import OpOverload, OpOverloadPacket

__all__ = ["OpOverload", "OpOverloadPacket", "_OpNamespace", "ops"]
