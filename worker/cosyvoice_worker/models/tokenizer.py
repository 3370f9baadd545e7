"""The text tokenizer: Qwen's byte-level BPE with CosyVoice's added tokens in the official order.

Built with the `tokenizers` library from vocab.json and merges.txt alone; the order of the added tokens decides their
ids, which are trained.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from cosyvoice_worker.models.special_tokens import SPECIAL_TOKENS

END_OF_PROMPT = "<|endofprompt|>"

# Qwen2's splitting rule, a published part of its tokenizer: contractions, words, single digits, punctuation, blanks.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TokenizerError(ValueError):
    """The tokenizer's files do not fit the model."""


class TextTokenizer:
    """Text to token ids and back. Thread-safe; encoding does not change state."""

    def __init__(self, vocab: Path, merges: Path, config: Path, version: int) -> None:
        """`config` is Qwen's tokenizer_config.json, whose added tokens come before CosyVoice's.

        Raises TokenizerError where the files are malformed.
        """
        try:
            table, merge_list = models.BPE.read_file(str(vocab), str(merges))
            declared = json.loads(config.read_text(encoding="utf-8")).get("added_tokens_decoder", {})
            special = {str(declared[key]["content"]): int(key) for key in sorted(declared, key=int)}
        except Exception as error:
            raise TokenizerError(f"{vocab.parent}: cannot read the tokenizer ({error}); copy it again") from error
        # New tokens follow the largest id. They go into the table itself, because which id the library would give
        # them where the table has gaps differs between its versions.
        following = max(*table.values(), *special.values()) + 1
        for token in SPECIAL_TOKENS[version]:
            if token not in special:
                special[token] = following
                following += 1
        model = models.BPE({**table, **special}, merge_list)
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        self.special = special
        """Special token -> id."""
        self.size = following
        """One more than the largest id."""
        self.end_of_prompt: int = special[END_OF_PROMPT]
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens in the text are recognised."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special))
