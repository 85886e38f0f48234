"""The adapter to real vLLM: its scheduler and store connector, driven one action at a time.

Importing this package does not import vLLM; what needs it raises VllmNotInstalled where it is
missing. Start reading at :mod:`cowtail.impl.vllm_engine.session`.
"""
