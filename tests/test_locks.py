"""Locks in forked children and in pickles."""

from __future__ import annotations

import os
import pickle
import threading
import warnings

from cachelayer.locks import ProcessLock


def test_a_child_of_a_fork_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    lock, held, done = ProcessLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        with lock:
            os._exit(5)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


def test_a_pickle_of_a_held_lock_is_free() -> None:
    lock = ProcessLock()
    with lock, pickle.loads(pickle.dumps(lock)):
        pass
