"""What is written beside an emitted test: files that import vLLM, and nothing of ours."""
