"""Rules of operators that put elements in other places, join tensors, or transform whole lines of them."""
