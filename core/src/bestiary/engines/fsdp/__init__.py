"""The training engine: packed micro-batches, summed gradients, AdamW on float32 masters.

``options`` is light (no torch); ``engine`` holds :class:`FSDPEngine`.
"""
