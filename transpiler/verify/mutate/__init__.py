"""Mutations of modeling files: small, named, some keep upstream's numbers, some not."""

from transpiler.verify.mutate.changes import CHANGING
from transpiler.verify.mutate.keeping import KEEPING

__all__ = ["CHANGING", "KEEPING", "MUTATIONS"]
MUTATIONS = (*KEEPING, *CHANGING)
