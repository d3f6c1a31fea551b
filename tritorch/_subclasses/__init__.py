"""Where PyTorch keeps its classes of tensors for tracing. Nothing is traced here."""
