"""The ONNX files of an exported folder against the same weights in torch: sentences a second, in one run.

    python run_export.py outputs/quickstart exported-int8 --onnx --int8
    OMP_NUM_THREADS=1 python benchmarks/onnx_files.py exported-int8 --sentences informin/general_sentences.txt

The three take turns; of each the median over the rounds is printed, by processor time, so that a shared machine matters
less.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from informin.encoders.encoder import load_encoder
from informin.publishing.onnx import MODEL, QUANTISED, load_onnx_encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="An exported folder with both ONNX files.")
    parser.add_argument("--sentences", required=True, help="A text file, a sentence a line.")
    parser.add_argument("--count", type=int, default=1000, help="The first so many of them.")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    lines = Path(args.sentences).read_text(encoding="utf-8").splitlines()
    sentences = [line for line in lines if line.strip()][: args.count]
    encoders = {
        "torch": load_encoder(args.folder, ("cls",), device="cpu"),
        MODEL: load_onnx_encoder(args.folder, MODEL),
        QUANTISED: load_onnx_encoder(args.folder, QUANTISED),
    }
    seconds = {name: [] for name in encoders}
    for _ in range(args.rounds):
        for name, encode in encoders.items():
            start = time.process_time()
            encode(sentences)
            seconds[name].append(time.process_time() - start)
    for name, measured in seconds.items():
        rate, ratio = len(sentences) / median(measured), median(seconds["torch"]) / median(measured)
        print(f"{name:<28} {rate:7.0f} sentences/s of processor time   {ratio:.2f} of torch")


if __name__ == "__main__":
    main()
