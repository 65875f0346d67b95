"""Policies for a block, a thread and the process: which kernel a call gets under each.

usage: python policy_contexts.py
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import torch

import vllm_fl_dispatch as fl

os.environ["VLLM_FL_PLUGIN_MODULES"] = "vendor_plugin"  # beside this file


def serving() -> str:
    """The module of the function that a call of silu_and_mul runs now."""
    return fl.resolve_op("silu_and_mul").__module__


def main() -> None:
    silu_and_mul = fl.get_op("silu_and_mul")  # one handle, which follows every policy below
    x = torch.randn(4, 64)
    plain = silu_and_mul(x)
    print("by default:", serving())

    with fl.with_preference("reference"):
        print("in a block that prefers the reference:", serving())
        torch.testing.assert_close(silu_and_mul(x), plain)
        with ThreadPoolExecutor() as pool:
            print("in a thread started there:", pool.submit(serving).result())

    with fl.with_denied_vendors("example"):
        print("without that vendor:", serving())

    policy = fl.SelectionPolicy.from_dict(per_op_order={"silu_and_mul": "impl:reference.torch"})
    with fl.policy_context(policy):
        print("by a policy with an order:", serving())

    fl.set_global_policy(policy)  # and in the processes that are started from now on
    print("by that policy for the process:", serving())
    fl.reset_global_policy()
    print("by default again:", serving())


if __name__ == "__main__":
    main()
