"""Where PyTorch keeps the tracer of operators, which is not here."""
