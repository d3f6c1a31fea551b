"""Copies between host and device, and page-locked memory."""

import numpy as np
import pytest
from recording_driver import installed

import tritorch.cuda as cuda
from tritorch.cuda import memory


@pytest.fixture
def device():
    with installed() as driver:
        yield driver


def test_pinned_memory_waits_for_its_copies(device):
    array = memory.pinned_empty(100)
    owner = memory.pinned_owner(array[10:].view(np.int8))
    assert owner is not None and memory.pinned_owner(np.empty(3)) is None
    ptr = array.__array_interface__["data"][0]
    memory.upload(array, 1 << 40, 0, owner)
    del array, owner
    second = memory.pinned_empty(100)
    assert second.__array_interface__["data"][0] != ptr
    device.pending.clear()
    assert memory.pinned_empty(300).__array_interface__["data"][0] == ptr
    del second
    memory.empty_pinned_cache()
    assert not device.host


def test_pinned_memory_without_copies_comes_back_at_once(device):
    ptr = memory.pinned_empty(100).__array_interface__["data"][0]
    assert memory.pinned_empty(100).__array_interface__["data"][0] == ptr
    assert memory.pinned_empty(0).size == 0


def test_copies_go_to_the_current_stream_and_downloads_wait(device):
    other = cuda.Stream()
    with cuda.stream(other):
        memory.upload(np.arange(4, dtype=np.float32), 1 << 40, 0)
        assert memory.download(1 << 40, 16, 0).shape == (16,)
        memory.fill(1 << 40, 0, 4, 7, 0)
    assert [call[4:] for call in device.named("copy")] == [("h2d", other.cuda_stream), ("d2h", other.cuda_stream)]
    assert device.named("stream_synchronize") == [("stream_synchronize", other.cuda_stream)]
    assert device.named("fill") == [("fill", 1 << 40, 0, 4, 7, other.cuda_stream)]
    memory.upload(np.empty(0), 0, 0)
    array = memory.pinned_empty(16)
    memory.download_into(array, 1 << 40, 0, memory.pinned_owner(array), non_blocking=True)
    assert len(device.named("stream_synchronize")) == 1


def test_pageable_memory_goes_through_pieces_of_pinned_memory(device):
    for _ in range(3):
        memory.upload(np.zeros(memory.STAGED // 2, np.uint8), 1 << 40, 0)
    sources = [call[2] for call in device.named("copy")]
    assert len(device.host) == 2 and sources[1] == sources[0] + memory.STAGED // 2                      # the third has a piece of its own
    device.pending.clear()
    memory.upload(np.zeros(memory.STAGED, np.uint8), 1 << 40, 0)
    assert len(device.host) == 2 and device.named("copy")[-1][2] == sources[0] and not device.named("stream_synchronize")
    memory.empty_pinned_cache()
    assert device.host                                                   # its copy has not run
    device.pending.clear()
    memory.empty_pinned_cache()
    assert not device.host


def test_uploads_wait_on_a_stream_that_may_be_destroyed(device):
    with cuda.stream(cuda.ExternalStream(0x1234)):
        memory.upload(np.zeros(4), 1 << 40, 0)
    assert not device.host and device.named("stream_synchronize") == [("stream_synchronize", 0x1234)]
