"""tritorch.cuda: devices, streams, events, memory and graphs, under the names of torch.cuda. Importing it touches no device."""
