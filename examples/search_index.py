"""Search the folder that `informin fit --documents smoothed` wrote, with FAISS.

python examples/search_index.py FOLDER "QUERY" ["QUERY" ...] --train_file FILE ...
"""

import argparse

import faiss
import numpy as np
from sentence_transformers import SentenceTransformer

from informin.textfiles import read_sentences, without_blanks
from informin.training.sentences import find_files

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder")
parser.add_argument("queries", nargs="+")
parser.add_argument("--train_file", nargs="+", required=True, help="The files that `informin fit` read.")
parser.add_argument("--text_column")
args = parser.parse_args()

texts = [
    text for file in find_files(args.train_file) for text in without_blanks(read_sentences(file, args.text_column))
]
documents = np.load(f"{args.folder}/documents.npy").astype(np.float32)  # one row per text
index = faiss.IndexFlatIP(documents.shape[1])  # unit vectors: the inner product is the cosine
index.add(documents)

queries = SentenceTransformer(args.folder).encode(args.queries)  # not smoothed; encode_query if it has a Router
cosines, found = index.search(queries, min(5, len(texts)))
for query, row, near in zip(args.queries, found, cosines):
    print(f"\n{query}")
    for i, cosine in zip(row, near):
        print(f"  {cosine:.3f}  {texts[i][:100]}")
