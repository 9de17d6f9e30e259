"""When imported, keeps AutoGraph from rewriting the functions that TensorFlow traces.

To read and rewrite functions takes a third of the time of tracing a tiny model. `make test` does
without, and the slow tests trace as users do. A function that needs AutoGraph and is not named here
fails.
"""

from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api

# Of make_step_loop: a `while` over tensors, and what calls a bound method on several replicas.
NEED_AUTOGRAPH = {"run_steps", "one_step"}
_converted_call = api.converted_call


def _call(f, args, kwargs, caller_fn_scope=None, options=None):
    function = getattr(f, "func", f)  # of a partial
    module = getattr(function, "__module__", "") or ""
    is_of_replicas = module.startswith("tensorflow.python.distribute")
    if is_of_replicas or getattr(function, "__name__", "") in NEED_AUTOGRAPH:
        return _converted_call(f, args, kwargs, caller_fn_scope, options)
    with ag_ctx.ControlStatusCtx(ag_ctx.Status.DISABLED):
        return api._call_unconverted(f, args, kwargs, options, update_cache=False)


api.converted_call = _call
