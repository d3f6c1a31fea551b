"""set_stance: whether compiled functions may be captured, replayed, or neither."""
import functools

from tritorch.cuda.watching import watched
from tritorch.errors import check, sentence

STANCES = "default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile", "aot_eager_then_compile"
chosen = None                                                            # a stance in which calls do something else than usual, or None


class set_stance:
    """What calls of compiled functions do from here on; in a `with` block, or as a decorator, only there.

    "default": what `tritorch.compile` says. "force_eager": they run eagerly. "eager_on_recompile": they replay what is recorded, and else
    run eagerly; "fail_on_recompile": else it is a RuntimeError. "eager_then_compile" and "aot_eager_then_compile" are "default", whose
    first calls are eager. `skip_guard_eval_unsafe` changes nothing; `force_backend` needs "default", and there is one backend. Raises
    ValueError for other stances, RuntimeError within a compiled function.

    >>> import tritorch as torch
    >>> @torch.compiler.set_stance("force_eager")
    ... def evaluate(model, x):
    ...     return model(x)
    >>> evaluate(torch.compile(torch.sin), torch.zeros(1))
    tensor([0.])
    """

    def __init__(self, stance="default", *, skip_guard_eval_unsafe=False, force_backend=None):
        check(stance in STANCES, "set_stance", f"one of {', '.join(STANCES)}", repr(stance), error=ValueError)
        check(force_backend is None or stance == "default", "set_stance", "force_backend with stance 'default' alone", repr(stance))
        self.stance = stance if stance in STANCES[1:4] else None
        self.before = self._take()

    def _take(self):
        global chosen
        check(watched.watcher is None, "set_stance", "a call outside of compiled functions", "one inside")
        before, chosen = chosen, self.stance
        return before

    def __enter__(self):
        self._take()
        return self

    def __exit__(self, *exception):
        global chosen
        chosen = self.before

    def __call__(self, fn):
        self.__exit__()

        @functools.wraps(fn)
        def within(*args, **kwargs):
            before = self._take()
            try:
                return fn(*args, **kwargs)
            finally:
                self.before = before
                self.__exit__()

        return within


def unrecorded(compiled, args, kwargs):
    """A call that no recording fits, in a stance that lets none be made."""
    if chosen == "fail_on_recompile":
        raise RuntimeError(sentence(compiled.name, "a call that is recorded, in the stance fail_on_recompile", "another", use="set_stance"))
    return compiled.function(*args, **kwargs)
