"""The rehearsal of a large run on one machine: its true topology, with stand-ins for the hardware.

`webrl rehearse` starts a Ray cluster of declared nodes (`cluster`), places the whole configuration on it
and runs as much of it as fits (`scale`, `program`), kills what it is told to (`injection`, `targets`),
and looks at what was left (`report`, `verdict`). In place of hardware stand a narrow policy (`policy`,
`manifest`), ranks and servers without a model (`engine`, `server`), sites and a judge (`site`, `judge`).
"""

from __future__ import annotations
