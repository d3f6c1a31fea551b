"""What this thread is doing: recording gradients or not, inferring, hunting anomalies, interpreting."""
import functools
import inspect
import threading

from tritorch.errors import switches


class State(threading.local):
    """Per-thread switches that the door of every operator reads."""

    grad = True                                                          # record the gradient graph
    inference = False                                                    # results are marked and never enter a graph
    interpreter = None                                                   # who sees every operator call before it runs
    anomaly = None                                                       # None, or whether NaN gradients are looked for
    run = None                                                           # the backward pass that is under way
    saved_hooks_off = None                                               # what to say to whoever wants such hooks where they are forbidden
    saved_hooks = ()                                                     # stack of (pack, unpack) for saved tensors


state = State()
inferred = hunted = interpreted = False          # whether any thread was ever in inference or anomaly mode or had an interpreter: until
                                                 # then nobody need look, which costs 0.03 µs a thread-local switch


def again(*inputs):
    """Whether what a rule makes of these inputs is differentiated in its turn: its graph is recorded, or tangents go with them."""
    return state.grad or interpreted and any(x is not None and x._tangents is not None for x in inputs)


class _Mode:
    """A context manager, and a decorator of functions, that sets grad mode and restores it."""

    grad = True

    def __enter__(self):
        self.was = state.grad
        state.grad = self.grad
        return self

    def __exit__(self, *exception):
        state.grad = self.was

    def __call__(self, fn):
        if inspect.isclass(fn):
            fn.__init__ = self(fn.__init__)
            return fn
        if inspect.isgeneratorfunction(fn):
            return self.steps(fn)

        @functools.wraps(fn)
        def wrapped(*args, **kwargs):
            with self.clone():
                return fn(*args, **kwargs)

        return wrapped

    def steps(self, fn):
        """A generator function whose steps run in the mode, and its caller between them in the caller's."""

        @functools.wraps(fn)
        def wrapped(*args, **kwargs):
            generator = fn(*args, **kwargs)
            step, value = generator.send, None
            try:
                while True:
                    with self.clone():
                        made = step(value)
                    try:
                        step, value = generator.send, (yield made)
                    except GeneratorExit:
                        raise
                    except BaseException as error:                       # the caller threw it: the generator may catch it
                        step, value = generator.throw, error
            except StopIteration as stop:
                return stop.value
            finally:
                with self.clone():
                    generator.close()

        return wrapped

    def clone(self):
        """A context of the same kind, for another `with`."""
        return type(self)()


class no_grad(_Mode):
    """Record nothing inside.

    >>> import tritorch as torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> with torch.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    grad = False

    def __new__(cls, fn=None):                                           # PyTorch allows @no_grad without brackets
        mode = object.__new__(cls)
        return mode if fn is None else mode(fn)


class enable_grad(no_grad):
    """Record inside, whatever is around.

    >>> import tritorch as torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> with torch.no_grad(), torch.enable_grad():
    ...     y = x * 2
    >>> y.requires_grad
    True
    """

    grad = True


class set_grad_enabled(_Mode):
    """Switch recording on or off, at once and until the end of the `with` block if there is one.

    >>> import tritorch as torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> with torch.set_grad_enabled(False):
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    def __init__(self, mode):
        switches("set_grad_enabled", mode=mode)
        self.was, self.grad = state.grad, mode
        state.grad = mode

    def __enter__(self):
        state.grad = self.grad
        return self

    def __call__(self, fn):
        state.grad = self.was                                            # used as a decorator: nothing changes now
        return super().__call__(fn)

    def clone(self):
        """A context of the same kind, for another `with`."""
        return set_grad_enabled(self.grad)


class inference_mode(_Mode):
    """Record nothing and mark every result: it can never be saved for a gradient.

    >>> import tritorch as torch
    >>> with torch.inference_mode():
    ...     y = torch.ones(2) * 2
    >>> y.is_inference()
    True
    """

    def __new__(cls, mode=True):
        self = object.__new__(cls)
        self.mode = mode
        if callable(mode):
            self.mode = True
            return self(mode)
        return self

    def __enter__(self):
        global inferred
        inferred = inferred or bool(self.mode)
        self.was = state.grad, state.inference
        state.grad, state.inference = not self.mode, self.mode           # as in PyTorch, False inside of no_grad() records again
        return self

    def __exit__(self, *exception):
        state.grad, state.inference = self.was

    def clone(self):
        """A context of the same kind, for another `with`."""
        return inference_mode(self.mode)


def is_grad_enabled():
    """Whether the graph is being recorded in this thread."""
    return state.grad


def is_inference_mode_enabled():
    """Whether this thread is inside `inference_mode`."""
    return state.inference


def is_anomaly_enabled():
    """Whether anomaly mode is on in this thread."""
    return state.anomaly is not None


def is_anomaly_check_nan_enabled():
    """Whether anomaly mode looks for NaN."""
    return state.anomaly is not False


class set_multithreading_enabled:
    """Accepted for PyTorch's sake: a backward pass always runs in the thread that asks for it."""

    def __init__(self, mode):
        self.mode = mode

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


class set_detect_anomaly:
    """Remember where every node was recorded and stop at the first NaN gradient, naming that place."""

    def __init__(self, mode=True, check_nan=True):
        global hunted
        switches("set_detect_anomaly", mode=mode, check_nan=check_nan)
        hunted = hunted or bool(mode)
        self.was = state.anomaly
        state.anomaly = check_nan if mode else None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        state.anomaly = self.was


class detect_anomaly(set_detect_anomaly):
    """As `set_detect_anomaly(True)`, for a `with` block."""

    def __init__(self, check_nan=True):
        self.mode = check_nan

    def __enter__(self):
        super().__init__(True, self.mode)
        return self
