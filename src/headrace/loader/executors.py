"""Which executor the arguments of a loader ask for."""

from __future__ import annotations

import os
from typing import Any

from headrace.core.process.allocator import keep_freed_memory
from headrace.core.protocols import is_live
from headrace.epoch.draws import resumable
from headrace.loader.memory import ARENA, accelerator_of, feed_for, host_memory_for, memory_here
from headrace.loader.options import AskedArguments, as_ray
from headrace.loader.read_ahead import remote_reading
from headrace.loader.session import LoaderSession
from headrace.samplers.live import LiveSampler
from headrace.telemetry.object_growth import warn_of_objects
from headrace.workers.auto.backend import advise, choose
from headrace.workers.auto.scaling import AutoScaler, scale_of
from headrace.workers.inline import InlineExecutor
from headrace.workers.processes.executor import ProcessExecutor
from headrace.workers.processes.starter import PoolStarter
from headrace.workers.protocol import Backend, Executor
from headrace.workers.remote.placement import Placement, RayPlacement
from headrace.workers.remote.remote_workers import RemoteWorkers
from headrace.workers.scale import asked_scale
from headrace.workers.threads import ThreadExecutor


def has_workers(loader: AskedArguments[Any], session: LoaderSession) -> bool:
    """Tells whether workers make the batches, as far as it is decided."""
    backend = session.backend or loader.backend
    return (loader.num_workers > 0 or session.tuner is not None) and backend != "inline"


def decided_backend(loader: AskedArguments[Any], session: LoaderSession) -> Backend:
    """Returns where batches will be made. "auto" is decided here, once, by loading a few samples."""
    if loader.backend == "auto" and session.backend is None:
        if session.tuner is not None or is_live(loader.dataset):
            session.backend = "process"  # of which there may be none
        elif loader.num_workers > 0:
            session.backend = choose(loader, session.spec(loader)).backend

    if not has_workers(loader, session):
        return "inline"
    if (session.backend or loader.backend) == "thread":
        return "thread"
    return "process"


def executor_for(loader: AskedArguments[Any], session: LoaderSession) -> Executor | None:
    """Returns what makes the batches of a loader; None: torch does, since processes of ours need POSIX.

    The memory that it uses belongs to this process, and goes with the last loader that holds it.
    """
    backend = decided_backend(loader, session)
    accelerator = accelerator_of(loader)
    on_device = loader._options.on_device
    asked = host_memory_for(accelerator, on_device=on_device is not None)
    if on_device is not None:
        session.resources.feed = feed_for(on_device, accelerator, asked, session.resources.feed)
    if session.resources.feed is not None:
        session.recorder.copies = session.resources.feed.copies
    session.resources.host = asked
    session.resources.remote = remote_reading(loader.dataset, session.resources.remote, processes=backend == "process")
    if session.resources.remote is not None:
        session.recorder.remote = session.resources.remote.reads
    sampler = resumable(loader._index_sampler)
    if isinstance(sampler, LiveSampler):
        session.recorder.live = sampler.reads
    if backend == "process":
        if os.name != "posix":
            return None  # descriptors cannot be handed to workers there
        return _processes(loader, session)

    session.resources.memory = memory_here(asked)
    # What was fetched lies in large blocks of this process's memory, of which as much again would stay once it is free.
    if session.resources.remote is None or session.resources.remote.stays_on_node:
        keep_freed_memory()
    if backend == "inline":
        return InlineExecutor(session.resources.memory)

    loader.check_worker_number_rationality()
    return ThreadExecutor(session.spec(loader), session.resources.memory)


def _processes(loader: AskedArguments[Any], session: LoaderSession) -> Executor:
    tuner = session.tuner
    placement = _placement(loader, session)
    tunes_workers = tuner is not None and tuner.limits.tunes_workers
    if not tunes_workers:
        loader.check_worker_number_rationality()

    if not session.looked_at:
        warn_of_objects(loader.dataset, loader.num_workers)
        advise(loader)
        session.looked_at = True

    session.resources.arena = ARENA.get()
    machines = None
    if placement is not None:
        machines = RemoteWorkers(placement)

    starter = PoolStarter(session.resources.arena, session.resources.fork_servers, machines, session.resources.host)
    scale = asked_scale(session.spec(loader)) if tuner is None else scale_of(tuner, loader.num_workers)
    processes = ProcessExecutor(starter, session.recorder, scale)
    processes.for_device = session.resources.feed is not None
    if tuner is None:
        return processes

    session.resources.memory = memory_here(session.resources.host)
    return AutoScaler(processes, session.resources.memory, tuner)


def _placement(loader: AskedArguments[Any], session: LoaderSession) -> Placement | None:
    """Returns what finds places on other machines; None: all workers run on this one."""
    ray = as_ray(loader.backend)
    if ray is not None and session.resources.placement is None:
        session.resources.placement = RayPlacement(ray)
    return session.resources.placement
