"""Ray actors as the workers of a batched endpoint: `@server.endpoint(batch=True, workers=ray_workers(4, num_gpus=1))`.

    BatchCall ──► ActorPool.call, .stream ──► Actor.run ──► the endpoint's function
                  (server process)            (actor)

Ray places and isolates the actors, and transports the events of a call with its streaming generators. This package imports
`ray` only when the workers start.
"""

from tidewire_server.batching.ray_workers.ray_workers import ray_workers

__all__ = ["ray_workers"]
