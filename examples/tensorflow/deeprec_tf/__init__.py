"""deeprec in TensorFlow, on the CPU: a fused safe lookup, tables that grow, a select of rows, and SmartStage on TensorFlow's graphs."""

from .growing import SGD, Adagrad, Adam, GrowingTable, RowwiseAdagrad, growing_lookup
from .hashing import to_hash_bucket
from .lookup import safe_embedding_lookup_sparse
from .select import row_select
from .smart_stage import StagedGraph, smart_stage, stage
from .staged_session import StagedSession

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "GrowingTable",
    "RowwiseAdagrad",
    "StagedGraph",
    "StagedSession",
    "growing_lookup",
    "row_select",
    "safe_embedding_lookup_sparse",
    "smart_stage",
    "stage",
    "to_hash_bucket",
]
