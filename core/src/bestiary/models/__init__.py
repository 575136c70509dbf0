"""Models: where they come from, their tokenizers, loading, heads and saving."""
