"""A model directory's tokenizer as one tokenizer.json, which gives the ids that transformers gives."""
