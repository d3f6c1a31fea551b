"""Rules of operators on images: convolution, pooling, padding, resizing. Samples join the dim of images, or of groups of channels."""
