"""Rollouts in plain torch: continuous batching with a KV cache, on CPU and CUDA alike."""
