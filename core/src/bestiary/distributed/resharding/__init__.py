"""From one layout of a model's weights to another with no byte more than is needed.

``mesh`` names the ranks, ``layout`` says which box of each parameter a rank holds, ``grouping``
which shard of the target a rank takes, ``plan`` which part of whose box goes where, ``execute``
does it over a process group, ``cost`` counts it on paper for the models in ``shapes``.
"""
