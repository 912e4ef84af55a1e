#!/usr/bin/env python3
"""A DFlash draft in the dialect that llama.cpp reads, and the pair of target and draft expanded to F32.

    pip install numpy gguf
    python3 harness/to_llama_cpp_pair.py --target target.gguf --draft draft.gguf --out folder

The draft comes in Lucebox's dialect (architecture `qwen35-dflash-draft` or `dflash-draft`). `folder` receives

- `draft.gguf`: its tensors as they are, block for block, under other names; goes with the target's own file;
- `target-f32.gguf`, `draft-f32.gguf`: both with every tensor in F32, so that no rounding stands between two programs.

Where the dialects differ (llama.cpp's conversion/qwen.py, class DFlashModel, as in llama-cpp-python 0.3.36):

- the layers that features come from are named by what enters them: one more than the number of the layer they leave;
- the mask token is a part of the tokenizer, which is the target's and lies in the draft's file too;
- beside a target with rotary sections, the draft has sections that put all of its channels into the first.

A key or a tensor that has no place there is an error: a draft that lost one still runs, and guesses badly.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np

DIALECTS = ("qwen35-dflash-draft", "dflash-draft")
TENSORS = {"dflash.fc.weight": "fc.weight", "dflash.hidden_norm.weight": "enc.output_norm.weight"}
LAYER_TENSORS = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_q_norm",
    "attn_k_norm",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)
SAME_KEYS = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.causal",
    "rope.freq_base",
)
# The tokenizer says how many tokens there are, the list of layers how many features.
DERIVED_KEYS = ("vocab_size", "dflash.n_target_layers", "dflash.n_target_features")
U32, I32, ARRAY = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.INT32, gguf.GGUFValueType.ARRAY
ALL_F32 = gguf.LlamaFileType.ALL_F32


class Metadata(dict):
    """Keys with value, type and, for lists, the type of the elements."""

    def __init__(self, reader: gguf.GGUFReader):
        super().__init__()
        for name, field in reader.fields.items():
            if not name.startswith("GGUF."):
                element = field.types[1] if field.types[0] == ARRAY else None
                self[name] = (field.contents(), field.types[0], element)

    def value(self, name: str):
        if name not in self:
            raise SystemExit(f"the key {name} is missing")
        return self[name][0]


def draft_metadata(draft: Metadata, target: Metadata) -> dict:
    dialect = draft.value("general.architecture")
    if dialect not in DIALECTS:
        raise SystemExit(f"the draft's architecture is {dialect}; {' or '.join(DIALECTS)} can be translated")
    out = {}
    for name, entry in draft.items():
        key = name.removeprefix(f"{dialect}.")
        if name.startswith("general."):
            out[name] = entry
        elif key in SAME_KEYS:
            out[f"dflash.{key}"] = entry
        elif key == "dflash.block_size":
            out["dflash.block_size"] = entry
        elif key == "dflash.target_layer_ids":
            out["dflash.target_layers"] = ([layer + 1 for layer in entry[0]], ARRAY, I32)
        elif key != "dflash.mask_token_id" and key not in DERIVED_KEYS:
            raise SystemExit(f"the draft's key {name} has no place in llama.cpp's dialect")
    out.update({name: entry for name, entry in target.items() if name.startswith("tokenizer.")})
    out["tokenizer.ggml.mask_token_id"] = (draft.value(f"{dialect}.dflash.mask_token_id"), U32, None)
    if f"{target.value('general.architecture')}.rope.dimension_sections" in target:
        half = draft.value(f"{dialect}.attention.key_length") // 2
        out["dflash.rope.dimension_sections"] = ([half, 0, 0, 0], ARRAY, I32)
    return out


def draft_name(name: str) -> str:
    """A tensor's name in llama.cpp's dialect."""
    parts = name.split(".")
    known = name == "output_norm.weight" or (
        len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_TENSORS and parts[3] == "weight"
    )
    if not known and name not in TENSORS:
        raise SystemExit(f"the draft's tensor {name} has no place in llama.cpp's dialect")
    return TENSORS.get(name, name)


def write(path: Path, architecture: str, metadata: dict, tensors: dict, expand: bool) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    for name, (value, kind, element) in metadata.items():
        if name == "general.architecture":
            continue
        if expand and name == "general.file_type":
            value = ALL_F32.value
        writer.add_key_value(name, value, kind, element)
    for name, tensor in tensors.items():
        if expand:
            weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            writer.add_tensor(name, weights.reshape(tensor.shape[::-1]))
        else:
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{path}: {architecture}, {len(tensors)} tensors, {path.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    args = parser.parse_args()
    target, draft = gguf.GGUFReader(args.target), gguf.GGUFReader(args.draft)
    target_keys = Metadata(target)
    draft_keys = draft_metadata(Metadata(draft), target_keys)
    target_tensors = {tensor.name: tensor for tensor in target.tensors}
    draft_tensors = {draft_name(tensor.name): tensor for tensor in draft.tensors}
    args.out.mkdir(parents=True, exist_ok=True)
    write(args.out / "draft.gguf", "dflash", draft_keys, draft_tensors, expand=False)
    write(args.out / "draft-f32.gguf", "dflash", draft_keys, draft_tensors, expand=True)
    architecture = target_keys.value("general.architecture")
    write(args.out / "target-f32.gguf", architecture, target_keys, target_tensors, expand=True)


if __name__ == "__main__":
    main()
