"""How vmap runs a function once for all samples. Inside, a tensor that differs from sample to sample looks like one sample; `level.py` sees
every operator that is called with one and hands it the tensor of all samples, as the operator's rule says: rules are in the other files,
one for each kind of operators. An operator without a rule is called for each sample."""
