"""The data that flows: a sample table on the controller, token columns where they were made.

``Ragged`` is one token column of some rows, ``RowBlock`` several columns of the same rows (what a
worker holds), ``Batch`` the controller's view over many blocks, ``Rows`` what authors of losses
and estimators see: whole right-padded rows.
"""

from bestiary.batch.batch import Batch, Column, Handle, Ready, as_column, row_key
from bestiary.batch.derive import preference_pairs, prefixes, token_column
from bestiary.batch.ragged import Ragged, RowBlock
from bestiary.batch.rows import Rows
from bestiary.batch.shipment import Shipment, ship

__all__ = [
    "Batch",
    "Column",
    "Handle",
    "Ragged",
    "Ready",
    "RowBlock",
    "Rows",
    "Shipment",
    "as_column",
    "preference_pairs",
    "prefixes",
    "row_key",
    "ship",
    "token_column",
]
