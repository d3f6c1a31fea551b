"""Settings of PyTorch's compiler, for programs that assign them: any name can be set, and nothing reads it. The options of
`tritorch.compile` are its arguments."""
