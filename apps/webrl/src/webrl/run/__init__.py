"""A run from its configuration to its end. This is the pipeline that `Run` builds and ends.

                        task stream (webrl.rollout.task_stream)
                             | groups of sibling requests
                             v
    +--- controller ---------------------------------------------------------------+
    |  admits a group while slots and staleness allow, assigns requests to workers |
    +------------------------------------------------------------------------------+
         | requests                                  ^ records (polled; a callback wakes the poll)
         v                                           |
    rollout workers, one process each: everlasting slots, Chromium, InterruptibleGenerator
         | prompts        ^ tokens, log-probs, versions        | screenshots
         v                |                                    v
    inference servers, one process each                    PixelStore shards
         ^ weights                                             | screenshots by key
         |                                                     v
    weight publisher <--- version --- step loop --- rows ---> trainer ranks, one process each
                                         ^
                                         | batches: the oldest complete groups with a gradient
                                    ready groups of the controller

Loops of the controller process, children of one `TaskGroup` unless said otherwise:

    stepping (webrl.training.step_loop)
        consumes  ready groups
        produces  a weight version for each update
        waits for a full batch, then the ranks' update, then the publish
        unblocked by complete groups; each wait has a deadline
    controller (awrl_rollout.RolloutController, a context of its own)
        consumes  groups of the task stream, records of workers
        produces  complete groups; refilled, rejected and expired episodes are counted
        waits for a free slot, room below the staleness bound, a record
        unblocked by ended episodes, a new version, a callback of a worker, its poll interval
    watching servers (webrl.run.server_recovery)
        consumes  signs of life
        produces  restarted servers that hold the newest weights
        waits for its interval, and for the lock that an update holds until it is published
    watching workers (webrl.run.supervisor)
        consumes  names of lost workers
        produces  replacements, which are given to the controller
    watching the PixelStore (webrl.run.supervisor)
        consumes  its fullness
        produces  an admission bound
    evaluation (webrl.evaluation.manager), in a thread, with a worker and servers of its own
        consumes  complete checkpoints
        produces  results; may ask stepping for a checkpoint, and is never waited for

Loops of a rollout worker: one for each slot, and one that posts callbacks (webrl.rollout.worker).

In a synchronous run there is no controller: stepping asks the workers for one round of episodes and
waits for the slowest of them (`webrl.rollout.batch_source.SynchronousRollouts`).

Folders, each importing only those below it:

    run         run, supervisor, server recovery, checkpoints, comparison of both pools
    evaluation  the role `test-rollout`, `webrl eval`, statistics
    records     metrics, live view, episodes, what lies where in a run's folder
    launch      component configurations, start and end of all roles
    training    step loop, rows, ranks, publishing
    rollout     worker, workflow, batch source, task stream, trajectory
    servers     one inference server as a process, and its actor
    cluster     Ray, placement, scheduler, network, logs
"""
