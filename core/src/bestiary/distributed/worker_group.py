"""WorkerGroup: one worker class on every device of a pool, called as one thing.

A worker class is any class that a rank can import and build as ``Class(args, seat)``::

    # my_package/worker.py
    class Worker:
        needs_process_group = True        # gloo on cpu, nccl on cuda; only if the group has > 1 rank

        def __init__(self, args: Any, seat: Seat) -> None: ...      # seat.rank .world .device
        def generate(self, requests, temperature) -> tuple[RowBlock, Any]:   # for .call
            return block, {"tokens": 12}
        def update(self, part) -> dict[str, Stat]: ...                        # for .run / .submit
        def close(self) -> None: ...                                          # optional

    pool = ResourcePool(devices=["cpu:0", "cpu:1"], name="model")
    group = WorkerGroup("model", pool, "my_package.worker:Worker", args, log_dir=run_dir / "logs")

    # rank r runs ``generate(*per_rank[r])``; returns at once, one handle a rank
    blocks = group.call("generate", [(requests_0, 1.0), (requests_1, 1.0)])
    blocks[0].table()     # waits for the sample columns only; token columns stay where they are
    blocks[0].report()    # the second value that the method returned
    blocks[0].get()       # brings the whole block here (counted in driver_bytes())

    # handles go in as arguments, anywhere inside them; in the worker ``handle.get()`` reads them
    # from the object store of its machine without a copy (arrays are read-only views)
    group.run("describe", "actor")                            # same arguments on every rank; waits
    pending = group.submit("update", [(blocks[1],), (blocks[0],)])      # plain results, at once
    pending.wait()                                                      # [result of each rank]
    group.close()

A call that fails raises :class:`bestiary.errors.WorkerFailure` at the next wait (of anything), and
its first line is the first failure: ``rank 2 killed by signal 9 at step 3 (group …)``. The group is
then dead: its processes are killed and every later call raises the same error.
:class:`bestiary.distributed.inprocess.InProcessGroup` has the same methods without Ray.
"""
