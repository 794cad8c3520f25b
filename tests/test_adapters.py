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
import json, re, shutil, torch
import numpy as np
from pathlib import Path
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPImageProcessorPil, CLIPVisionConfig, GlmAsrConfig, GlmAsrEncoderConfig,
    GlmAsrForConditionalGeneration, LlamaConfig, LlamaForCausalLM,
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
    # A reranker: its score is made from two or one of the head's rows.
    logits = model(prompt).logits[0, -1]
    said[f"{name}-two"] = (logits[6] - logits[5]).sigmoid().tolist()
    said[f"{name}-one"] = logits[5].sigmoid().tolist()

# Saved by the model without a head: no `model.` before the names.
shutil.copytree("llama", "bare")
weights = load_file("llama/model.safetensors")
weights.pop("lm_head.weight")
weights = {name.removeprefix("model."): weights[name] for name in weights}
save_file(weights, "bare/model.safetensors", metadata={"format": "pt"})
said["bare"] = said["llama"]

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

# The outer config says whether the head is tied, not the language part's own.
for name, tied in ("tied-outside", True), ("untied-outside", False):
    audio = GlmAsrEncoderConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_mel_bins=16, max_position_embeddings=32,
    )
    text = LlamaConfig(**small, tie_word_embeddings=not tied)
    model = GlmAsrForConditionalGeneration(
        GlmAsrConfig(
            audio_config=audio, text_config=text, audio_token_id=127,
            tie_word_embeddings=tied,
        )
    ).eval()
    model.save_pretrained(name)
    weights = {
        key.replace(".model.model.", ".model."): value
        for key, value in load_file(f"{name}/model.safetensors").items()
    }
    save_file(weights, f"{name}/model.safetensors", metadata={"format": "pt"})
    answer = model.generate(prompt, max_new_tokens=5, do_sample=False)
    said[name] = answer[0, 4:].tolist()

# The language part before and after the audio part, so that it is loaded in two runs.
text.tie_word_embeddings = False
shutil.copytree("untied-outside", "parts")
model.config.save_pretrained("parts")
first = {key for key in weights if key.startswith("language") and ".1." not in key}
for file, keys in ("a", first), ("b", weights.keys() - first):
    part = {key: weights[key] for key in keys}
    save_file(part, f"parts/model-{file}.safetensors", metadata={"format": "pt"})
Path("parts/model.safetensors").unlink()
said["parts"] = said["untied-outside"]

native = Path("native")
native.mkdir()
(native / "params.json").write_text(json.dumps(dict(
    dim=32, n_layers=2, head_dim=32, hidden_dim=64, n_heads=2, n_kv_heads=1,
    norm_eps=1e-6, vocab_size=128, rope_theta=10000.0, max_seq_len=64,
    max_position_embeddings=64,
)))
weights = {"tok_embeddings.weight": torch.zeros(128, 32)}
save_file(weights, native / "consolidated.safetensors")
(native / "config.json").write_text(json.dumps(dict(
    small, model_type="mistral", architectures=["MistralForCausalLM"],
)))
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
    [
        ("llama", "embed"),
        ("tied", "embed"),
        ("bare", "embed"),
        ("classifier", "classify"),
    ],
)
def test_pooling_is_equal_to_transformers(site, said, model, convert):
    engine = {"model": model, "runner": "pooling", "convert": convert}
    got = result(site.engine({"engine": engine}))
    (worker,) = got["workers"]
    assert worker["ours"] == "generated.llama"
    assert worker["misnamed"] == []
    assert got["answer"] == pytest.approx(said[model], abs=1e-4)


@pytest.mark.parametrize("model", ["llama", "tied"])
@pytest.mark.parametrize(
    ("name", "method", "tokens"),
    [
        ("two", "from_2_way_softmax", ["t5", "t6"]),
        ("one", "no_post_processing", ["t5"]),
    ],
)
def test_reranking_is_equal_to_transformers(site, said, model, name, method, tokens):
    overrides = {"classifier_from_token": tokens, "method": method}
    overrides["architectures"] = ["LlamaForSequenceClassification"]
    engine = {"model": model, "runner": "pooling", "convert": "classify"}
    got = result(site.engine({"engine": {**engine, "hf_overrides": overrides}}))
    assert got["workers"][0]["ours"] == "generated.llama"
    assert got["answer"] == pytest.approx([said[f"{model}-{name}"]], abs=1e-4)


def test_a_missing_score_is_refused(site, said):
    engine = {"model": "llama", "runner": "pooling", "convert": "classify"}
    run = site.engine({"engine": engine})
    assert run.returncode != 0
    assert "the checkpoint lacks score.weight" in run.stdout + run.stderr


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
    assert worker["misnamed"] == []
    assert got["answer"] == said["llava"]


@pytest.mark.parametrize("model", ["tied-outside", "untied-outside", "parts"])
def test_the_language_part_of_glm_asr_is_equal_to_transformers(site, said, model):
    engine = {"model": model, "limit_mm_per_prompt": {"audio": 0}}
    engine["skip_tokenizer_init"] = True
    got = result(site.engine({"engine": engine}))
    (worker,) = got["workers"]
    assert worker["class"] == "GlmAsrForConditionalGeneration"
    assert worker["ours"] == "generated.llama"
    assert worker["misnamed"] == []
    assert got["answer"] == said[model]


def test_positions_by_axis_are_refused(site, said):
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    engine = {"model": "llama", "hf_overrides": {"rope_parameters": rope}}
    run = site.engine({"engine": engine})
    assert run.returncode != 0
    assert "rope_parameters: mrope_section" in run.stdout + run.stderr


@pytest.mark.skipif(
    "MistralForCausalLM" not in generated.ARCHITECTURES,
    reason="generated/registry.py has no Mistral yet",
)
@pytest.mark.parametrize(
    "config_format",
    [
        pytest.param("auto", id="as-vllm-finds-it"),
        pytest.param("hf", id="native-weights-alone"),
    ],
)
def test_a_native_mistral_checkpoint_is_refused_naming_the_switch(
    site, said, config_format
):
    engine = {"model": "native", "config_format": config_format}
    engine["skip_tokenizer_init"] = True
    run = site.engine({"engine": engine})
    assert run.returncode != 0
    told = run.stdout + run.stderr
    assert "VLLM_TRANSPILED=-MistralForCausalLM gives vLLM's own class" in told
