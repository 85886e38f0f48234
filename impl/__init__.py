"""Systems under test: the torch engine, and the adapter to real vLLM."""
