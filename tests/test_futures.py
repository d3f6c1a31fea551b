"""Futures: values, errors and what is done with them, in whichever thread they come."""
import threading

import pytest

import tritorch as torch

Future = torch.futures.Future


def test_a_value_that_comes_later():
    future = Future()
    seen = []
    doubled = future.then(lambda f: 2 * f.value())
    future.add_done_callback(lambda f: seen.append(f.value()))
    future.add_done_callback(lambda f: 1 / 0)                            # what a callback raises is dropped
    assert not future.done()
    with pytest.raises(RuntimeError, match="done"):
        future.value()
    threading.Timer(0.02, lambda: future.set_result(3)).start()
    assert future.wait() == 3 and doubled.wait() == 6 and future.done() and seen == [3] and future.then(lambda f: f.value() + 1).wait() == 4
    with pytest.raises(RuntimeError, match="is done"):
        future.set_result(4)


def test_errors():
    future = Future()
    after, saved = future.then(lambda f: f.value()), future.then(lambda f: 7)
    future.set_exception(KeyError("lost"))
    for call in (future.wait, future.value, after.wait):
        with pytest.raises(KeyError, match="lost"):
            call()
    assert saved.wait() == 7
    with pytest.raises(AssertionError):
        Future().set_exception("text")
    with pytest.raises(ZeroDivisionError):
        saved.then(lambda f: 1 / 0).wait()


def test_several():
    some = [Future() for _ in range(3)]
    all_of_them = torch.futures.collect_all(some)
    for i in (2, 0, 1):
        assert not all_of_them.done()
        some[i].set_result(i)
    assert [f.value() for f in all_of_them.wait()] == [0, 1, 2] == torch.futures.wait_all(some) and torch.futures.wait_all([]) == []
    some = [Future() for _ in range(3)]
    all_of_them = torch.futures.collect_all(some)
    some[1].set_exception(ValueError("first"))
    with pytest.raises(ValueError, match="first"):                       # the others are not waited for
        all_of_them.wait()
    some[0].set_exception(ValueError("second"))
    some[2].set_result(1)
    with pytest.raises(ValueError, match="first"):
        all_of_them.wait()


def test_many_threads():
    futures = [Future() for _ in range(200)]
    sums = [f.then(lambda f: f.value() + 1) for f in futures]
    threads = [threading.Thread(target=lambda part: [f.set_result(1) for f in part], args=(futures[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    assert sum(f.wait() for f in sums) == 400
    for thread in threads:
        thread.join()
