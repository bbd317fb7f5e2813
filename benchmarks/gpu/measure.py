"""What a GPU makes of training: packed rows against padded ones, the plain Trainer, a bare loop, and the matrix peak.

    python3 benchmarks/gpu/measure.py [--json FILE] [--device cuda|cpu] [--tiny] [--seconds 340]

One command of at most six minutes, from the root of the repository; it needs no network and no data. It measures an
encoder of BERT-base's size and a decoder of about half a billion weights (Qwen2's shape), both with random weights, in
bf16, on random rows of 8 to 256 tokens, by steps after some that warm up:

* padded: a trial with a token budget, rows grouped by length;
* packed: a trial with ``batching: packed`` and as many tokens, and the same with torch_compile;
* trainer: a plain transformers.Trainer with as many rows per step on average, padded to the longest of them;
* bare: a loop in plain PyTorch over the packed trial's batches with its model, AdamW, clipping and autocast;
* LoRA, and LoRA over 4 bits where bitsandbytes can be imported: a packed trial, and the Trainer with peft.

Results are one flat JSON object, written anew after each contender, so that a run that is cut off loses nothing. What
failed, or was not begun in time, is named there with its reason, and what follows is measured all the same. Examples
are rows; tokens are those of rows, without padding; shares of the peak are those of a measured product of matrices.

It needs Python 3.11 or newer with torch, transformers 5, accelerate, peft, numpy, pandas, pyarrow, safetensors,
tokenizers, PyYAML, and of what a machine with torch may lack: pydantic, pydantic-core, typing-inspection, datasets,
dill, multiprocess (wheels of 4 MB in all; bitsandbytes has 60 MB). Ray, MLflow and Optuna are not imported.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "platform"))

import torch
from bench import TINY, Bench
from contenders import Contenders
from transformers import BertConfig, BertModel, Qwen2Config, Qwen2Model

from tutti.modeling.adapters import has_bitsandbytes

LORA: dict[str, Any] = {"adapter": "lora", "lora_r": 16, "lora_alpha": 32.0, "lora_dropout": 0.05}


def measure(bench: Bench) -> None:
    """Everything, the most wanted first."""
    bench.part("peak", bench.peak)
    for name, config, kind in (
        ("encoder", BertConfig(**bench.sizes.encoder), BertModel),
        ("decoder", Qwen2Config(**bench.sizes.decoder, pad_token_id=0), Qwen2Model),
    ):
        torch.manual_seed(0)
        with bench.device:
            model = kind(config)
        contenders = Contenders(bench, name, model.cpu())
        del model
        rows = max(int(contenders.tokens / contenders.mean), 1)
        bench.part(f"{name}_packed", lambda: contenders.trial(batching="packed"))  # noqa: B023  called at once
        share_of_peak(bench, contenders, f"{name}_packed")
        bench.part(f"{name}_padded", lambda: contenders.trial())  # noqa: B023
        bench.part(f"{name}_bare", contenders.bare)
        bench.part(f"{name}_trainer", lambda: contenders.plain(rows))  # noqa: B023
        bench.ratio(f"{name}_packed_vs_padded", f"{name}_packed", f"{name}_padded")
        bench.ratio(f"{name}_vs_bare", f"{name}_packed", f"{name}_bare")
        bench.ratio(f"{name}_vs_trainer", f"{name}_packed", f"{name}_trainer")
        if name == "decoder":
            measure_adapters(bench, contenders, rows)
        compiled = {"batching": "packed", "torch_compile_backend": "aot_eager" if bench.sizes is TINY else "inductor"}
        bench.part(f"{name}_compiled", lambda: contenders.trial(**compiled))  # noqa: B023
        share_of_peak(bench, contenders, f"{name}_compiled")
        bench.ratio(f"{name}_compiled_vs_packed", f"{name}_compiled", f"{name}_packed")


def share_of_peak(bench: Bench, contenders: Contenders, contender: str) -> None:
    """The share of the measured matrix peak that a contender's operations are, if it was measured."""
    speed, peak = bench.results.get(f"{contender}_tokens_per_second"), bench.results.get("peak_tflops")
    if isinstance(speed, float) and isinstance(peak, float):
        bench.write(**{f"{contender}_share_of_peak": speed * contenders.operations_per_token() / peak / 1e12})


def measure_adapters(bench: Bench, contenders: Contenders, rows: int) -> None:
    keys = {"batching": "packed", **LORA}
    bench.part("lora", lambda: contenders.trial(**keys))
    bench.part("lora_trainer", lambda: contenders.plain(rows, adapter=True))
    bench.ratio("lora_vs_trainer", "lora", "lora_trainer")
    if not has_bitsandbytes():
        bench.write(bits4_skipped="bitsandbytes cannot be imported")
        return
    bench.part("bits4", lambda: contenders.trial(**keys, bits=4))
    bench.part("bits4_trainer", lambda: contenders.plain(rows, adapter=True, bits=True))
    bench.ratio("bits4_vs_trainer", "bits4", "bits4_trainer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file of the results, written anew after each contender")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="models of a few thousand weights, to try the command")
    parser.add_argument("--seconds", type=float, default=340, help="after which no contender is begun")
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        measure(bench)
        bench.write(seconds=time.perf_counter() - began)


if __name__ == "__main__":
    main()
