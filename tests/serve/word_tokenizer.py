"""A tokenizer whose tokens are the emulator's words, in files that other tools read.

What they send and count is what we send and count.
"""

import json

from inferometer.serve.emulator_words import WORDS


def write_word_tokenizer(folder):
    import tokenizers

    vocabulary = {word: i for i, word in enumerate(("<unk>", "<s>", "</s>", *WORDS))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 -- a word of a vocabulary
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
