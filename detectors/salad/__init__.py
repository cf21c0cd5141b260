"""Word salad: tokens that follow each other as in no healthy text, whatever the vocabulary."""

from checkengine.detectors.salad.batch import SaladBatch, SaladReading, scan_texts
from checkengine.detectors.salad.pieces import TextPieces, text_tables
from checkengine.detectors.salad.table import SaladTables
from checkengine.detectors.salad.text_vocabulary import text_tokenizer

__all__ = [
    "SaladBatch",
    "SaladReading",
    "SaladTables",
    "TextPieces",
    "scan_texts",
    "text_tables",
    "text_tokenizer",
]
