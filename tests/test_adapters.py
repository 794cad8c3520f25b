"""The generated Llama where vLLM uses it as a part: pooling, multimodal, native format.

Overriding `LlamaForCausalLM` replaces more than the text model. Each use is either
equal to Transformers or refused with a line that names the switch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from installed import Site, install, result

import generated

# Writes the checkpoints and prints what Transformers says of each.
CHECKPOINTS = """
import json, re, torch
import numpy as np
from pathlib import Path
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil, CLIPVisionConfig, LlamaConfig, LlamaForCausalLM,
    LlamaForSequenceClassification, LlavaConfig, LlavaForConditionalGeneration,
    LlavaProcessor, PreTrainedTokenizerFast,
)

torch.manual_seed(0)
small = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=32, vocab_size=128, max_position_embeddings=64,
    initializer_range=0.2, pad_token_id=0,
)
words = {f"t{i}": i for i in range(127)} | {"<image>": 127}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="t0", pad_token="t0", eos_token="t2",
    extra_special_tokens={"image_token": "<image>"},
)
prompt = torch.tensor([[1, 2, 3, 4]])
said = {}

for name, tied in ("llama", False), ("tied", True):
    model = LlamaForCausalLM(LlamaConfig(**small, tie_word_embeddings=tied)).eval()
    model.save_pretrained(name)
    tokenizer.save_pretrained(name)
    last = model.model(prompt).last_hidden_state[0, -1]
    said[name] = (last / last.norm()).tolist()

config = LlamaConfig(**small, num_labels=3)
classifier = LlamaForSequenceClassification(config).eval()
classifier.save_pretrained("classifier")
tokenizer.save_pretrained("classifier")
said["classifier"] = classifier(prompt).logits.softmax(-1)[0].tolist()

vision = CLIPVisionConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1,
    image_size=28, patch_size=14, projection_dim=32,
)
llava = LlavaForConditionalGeneration(
    LlavaConfig(
        vision_config=vision, text_config=LlamaConfig(**small), image_token_index=127,
        image_seq_length=4,
    )
).eval()
llava.save_pretrained("llava")
# vLLM 0.32 knows the vision tower by the name it had before transformers 5.
weights = {
    re.sub(r"vision_tower\\.(?!vision_model)", "vision_tower.vision_model.", key): value
    for key, value in load_file("llava/model.safetensors").items()
}
save_file(weights, "llava/model.safetensors", metadata={"format": "pt"})
processor = LlavaProcessor(
    CLIPImageProcessorPil(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
    ),
    tokenizer, patch_size=14, vision_feature_select_strategy="default",
    num_additional_image_tokens=1,
)
processor.save_pretrained("llava")
pixels = np.arange(28 * 28 * 3).reshape(28, 28, 3) * 7 % 255
Image.fromarray(pixels.astype("uint8")).save("image.png")
with Image.open("image.png") as image:
    asked = processor(text="t1 <image> t3 t4", images=image, return_tensors="pt")
answer = llava.generate(**asked, max_new_tokens=5, do_sample=False, eos_token_id=-1)
said["llava"] = answer[0, asked["input_ids"].shape[1]:].tolist()

native = Path("native")
native.mkdir()
(native / "params.json").write_text(json.dumps(dict(
    dim=32, n_layers=2, head_dim=32, hidden_dim=64, n_heads=2, n_kv_heads=1,
    norm_eps=1e-6, vocab_size=128, rope_theta=10000.0, max_seq_len=64,
    max_position_embeddings=64,
)))
weights = {"tok_embeddings.weight": torch.zeros(128, 32)}
save_file(weights, native / "consolidated.safetensors")
print("SAID", json.dumps(said))
"""
# vLLM's llava imports Pixtral's image processor, which imports torchvision; see
# tests/requirements.txt for why that is not installed. Nothing here calls it.
NO_TORCHVISION = """
import sys, types
name = "transformers.models.pixtral.image_processing_pixtral"
sys.modules[name] = types.ModuleType(name)
sys.modules[name]._num_image_tokens = None
"""

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        "LlamaForCausalLM" not in generated.ARCHITECTURES,
        reason="generated/registry.py has no Llama yet",
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Site:
    return install(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def said(site) -> dict:
    """What Transformers says of each checkpoint, which lie in the working directory."""
    run = site.run(["-c", CHECKPOINTS])
    assert run.returncode == 0, run.stderr
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("SAID ")]
    return json.loads(line.removeprefix("SAID "))


def test_the_install_is_what_is_checked_in(site):
    there = {path.name for path in (site.folder / "generated").glob("*.*")}
    here = {path.name for path in Path(generated.__file__).parent.glob("*.*")}
    assert there == here


@pytest.mark.parametrize(
    ("model", "convert"),
    [("llama", "embed"), ("tied", "embed"), ("classifier", "classify")],
)
def test_pooling_is_equal_to_transformers(site, said, model, convert):
    engine = {"model": model, "runner": "pooling", "convert": convert}
    got = result(site.engine({"engine": engine}))
    assert got["workers"][0]["ours"] == "generated.llama"
    assert got["answer"] == pytest.approx(said[model], abs=1e-4)


def test_the_language_part_of_llava_is_equal_to_transformers(site, said, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NO_TORCHVISION)
    asked = {
        "engine": {"model": "llava", "limit_mm_per_prompt": {"image": 1}},
        "prompt": {"prompt": "t1 <image> t3 t4"},
        "image": "image.png",
    }
    path = os.pathsep.join([str(site.folder), str(tmp_path)])
    got = result(site.engine(asked, PYTHONPATH=path))
    (worker,) = got["workers"]
    assert worker["class"] == "LlavaForConditionalGeneration"
    assert worker["ours"] == "generated.llama"
    assert got["answer"] == said["llava"]


@pytest.mark.skipif(
    "MistralForCausalLM" not in generated.ARCHITECTURES,
    reason="generated/registry.py has no Mistral yet",
)
def test_a_native_mistral_checkpoint_is_refused_naming_the_switch(site, said):
    engine = {"model": "native", "load_format": "mistral", "config_format": "mistral"}
    engine["skip_tokenizer_init"] = True
    run = site.engine({"engine": engine})
    assert run.returncode != 0
    assert "VLLM_TRANSPILED=-MistralForCausalLM" in run.stdout + run.stderr
