"""Small model directories, one for each tokenizer class, in the older form: vocabulary files and no tokenizer.json."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

CORPUS = (
    "the quick brown fox jumps over the lazy dog, and the cat sat on the mat.",
    'hello world (again) - it costs £5.50 or €6, doesn\'t it? "yes" he said.',
    "un café crème à la crème brûlée, où l'école élève naïve mange une pêche.",
    "der schnelle braune Fuchs springt über den faulen Hund; Straße, Größe, Öl.",
    "el niño pequeño comió mañana en la montaña con su corazón.",
    "быстрая коричневая лиса прыгает через ленивую собаку, привет мир.",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.",
    "敏捷的棕色狐狸跳过懒狗。 こんにちは世界、日本語です。",
    "שלום עולם מה שלומך היום. مرحبا بالعالم كيف حالك اليوم.",
    "0 1 2 3 4 5 6 7 8 9 10 100 2024 3.14 1,000",
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = "the a of and in hello world cat dog red blue é ü naive école ECOLE Hello NEW 中 国 日 本 ע ש".split()
PIECES = [*LETTERS, *("##" + letter for letter in LETTERS), *"0123456789.,!?[]<>/-'", *WORDS]
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write files, objects as JSON; None removes one. -> folder"""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink(missing_ok=True)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return folder


def word_pieces(special: list[str]) -> str:
    """A vocab.txt."""
    return "\n".join(dict.fromkeys([*special, *PIECES])) + "\n"


def byte_pieces(folder: Path) -> None:
    """Train vocab.json and merges.txt into a folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=ROBERTA_SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.model.save(str(folder))


def pieces(**options: Any) -> bytes:
    """Train a unigram sentencepiece model."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 3),
        model_writer=written,
        vocab_size=300,
        hard_vocab_limit=False,
        character_coverage=1.0,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return written.getvalue()


def albert_pieces() -> bytes:
    """As ALBERT's own model: no first and last token, symbols that are never merged."""
    return pieces(
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols="[CLS],[SEP],[MASK]",
        user_defined_symbols=["(", ")", '"', "-", ".", "–", "£", "€"],
    )


def make_all(root: Path) -> dict[str, Path]:
    """One directory for each class, by its name; the configs say no more than they must."""
    words, roberta_words = word_pieces(BERT_SPECIAL), word_pieces([*ROBERTA_SPECIAL, "[UNK]"])
    unigram = pieces()
    folders: dict[str, tuple[str, dict[str, Any]]] = {
        "BertTokenizer": ("bert", {"vocab.txt": words}),
        "ElectraTokenizer": ("electra", {"vocab.txt": words}),
        "DistilBertTokenizer": ("distilbert", {"vocab.txt": words}),
        "MPNetTokenizer": ("mpnet", {"vocab.txt": roberta_words}),
        "RobertaTokenizer": ("roberta", {}),
        "XLMRobertaTokenizer": ("xlm-roberta", {"sentencepiece.bpe.model": unigram}),
        "CamembertTokenizer": ("camembert", {"sentencepiece.bpe.model": unigram}),
        "AlbertTokenizer": ("albert", {"spiece.model": albert_pieces()}),
    }
    for name, (model_type, files) in folders.items():
        config: dict[str, Any] = {
            "config.json": {"model_type": model_type},
            "tokenizer_config.json": {"tokenizer_class": name},
        }
        write(root / name, config | files)
    byte_pieces(root / "RobertaTokenizer")
    return {name: root / name for name in folders}
