"""FlagGems' attention as vLLM sees it: classes of `vllm.v1.attention.backend`."""
