"""Starts processes that share no connection, lock or thread with their parent."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.context import BaseContext


def clean_context(preload: str) -> BaseContext:
    """``forkserver``, whose server imports the module ``preload`` once and forks cheaply; ``spawn`` elsewhere."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    return context


def adopt_environment(environment: Mapping[str, str]) -> None:
    """In a new process: take the parent's variables (credentials, configuration) as they are now.

    Children of a fork server would otherwise have the variables of the moment when the server started.
    """
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
