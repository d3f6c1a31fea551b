"""The operators: a family in each file, `methods` the table that puts them on Tensor and `tritorch`."""
