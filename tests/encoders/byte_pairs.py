"""A small tokenizer of the kind that models with rotary positions have, trained on the texts of the tests."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = ["hello world", "a cat is on the river bank", "", "the dog is fast, the train is slow! " * 15]


def make_tokenizer() -> Any:
    """As ModernBERT's: bytes, merged by pairs, between [CLS] and [SEP]; no token types."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    wrap: Any = PreTrainedTokenizerFast
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    inputs = ["input_ids", "attention_mask"]
    return wrap(tokenizer_object=tokenizer, model_input_names=inputs, model_max_length=200, **names)
