"""Policy `clockwork`: what the rule of Clockwork (OSDI 2020) comes to, as a member of late binding.

A free vGPU takes the queue whose largest batch in time must start soonest, as soon as there is a
request, and only what can no longer be in time is dropped. That is `eager` with heads `head`. Its
other parts (models that are loaded on demand, work for a window ahead) are none of it.
"""

from triton_backend.scheduler.policies.late import AT_ONCE, BY_HEAD, LEAST_LATEST
from triton_backend.scheduler.topology import LateRules

POLICIES = {"clockwork": LateRules(opens=AT_ONCE, heads=BY_HEAD, rank=LEAST_LATEST)}
