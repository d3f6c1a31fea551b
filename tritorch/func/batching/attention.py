"""Rules of attention and recurrent layers. Samples join the dim of batches."""
