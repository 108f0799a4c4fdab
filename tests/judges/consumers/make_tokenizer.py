"""Makes a Hugging Face tokenizer, a word, a token, and prints its folder. Runs on aiperf's Python.

The argument is a folder that is then a Hugging Face cache with the tokenizer `judges/words`: where
nothing may be downloaded, aiperf takes tokenizers from such a cache alone.

The words are those of aiperf's own corpus, so that its random prompts tokenize back to the ids that
they were made of, and so do the ids 100..200 that a worker answers with.
"""

import sys
from pathlib import Path

import aiperf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

UNKNOWN = "<unk>"
CORPUS = Path(aiperf.__file__).parent / "dataset" / "generator" / "assets" / "shakespeare.txt"


REVISION = "0" * 40


def main(cache):
    model = Path(cache) / "hub" / "models--judges--words"
    folder = model / "snapshots" / REVISION
    folder.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(REVISION)
    words = dict.fromkeys(CORPUS.read_text(encoding="utf-8").split())
    ids = {word: token_id for token_id, word in enumerate([UNKNOWN, *words])}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=UNKNOWN).save_pretrained(folder)
    print(folder)


main(sys.argv[1])
