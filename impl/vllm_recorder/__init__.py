"""The recorder: what a live vLLM scheduler does to blocks, as lines of a log.

It needs nothing but the standard library and the scheduler that it is attached to; the plugin
that vLLM loads is `cowtail.vllm_plugin`.
"""
