"""Rules of norms and of what is fused with them."""
