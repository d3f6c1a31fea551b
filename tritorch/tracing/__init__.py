"""What exporters stand on: the operators that a call runs (`tracer`), and the same of calls of several sizes as one (`sizes`)."""
