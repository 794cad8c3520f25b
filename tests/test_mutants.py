"""Edits that change what an upstream file computes: refused, or carried over.

Each puts one small change into a real modeling file. The transpiler must refuse it with
the code given here, or, where none is given, write something else than for the file as
it was: what the edit says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import libcst as cst
import pytest

from transpiler.pipeline import transpile_source
from transpiler.read import Source, read
from transpiler.refusal import Refused


@dataclass(frozen=True)
class Mutant:
    """One edit: `old` becomes `new`; `code` is the refusal, empty where emitted."""

    model: str
    name: str
    old: str
    new: str
    code: str = ""
    more: tuple[tuple[str, str], ...] = ()


MUTANTS = (
    Mutant(
        "llama",
        "norm-bias",
        "return self.weight * hidden_states.to(input_dtype)",
        "return self.weight * hidden_states.to(input_dtype) + 1",
        "parameter",
    ),
    Mutant(
        "llama",
        "1-w",
        "return self.weight * hidden",
        "return (1 + self.weight) * hidden",
        "parameter",
    ),
    Mutant(
        "llama",
        "rot-sign",
        "return torch.cat((-x2, x1), dim=-1)",
        "return torch.cat((x2, -x1), dim=-1)",
        "heads",
    ),
    Mutant(
        "llama",
        "eager-scale",
        "key_states.transpose(2, 3)) * scaling",
        "key_states.transpose(2, 3)) * scaling * 2",
        "eager-body",
    ),
    Mutant(
        "llama",
        "cos-sin-swap",
        "apply_rotary_pos_emb(query_states, key_states, cos, sin)",
        "apply_rotary_pos_emb(query_states, key_states, sin, cos)",
        "operation",
    ),
    Mutant(
        "llama",
        "unpack-swap",
        "cos, sin = position_embeddings",
        "sin, cos = position_embeddings",
        "operation",
    ),
    Mutant(
        "llama",
        "k-v-swap",
        "            query_states,\n            key_states,\n            value_states,\n            attention_mask",
        "            query_states,\n            value_states,\n            key_states,\n            attention_mask",
        "",
    ),
    Mutant(
        "llama",
        "resid-twice",
        "        hidden_states = residual + hidden_states\n        return",
        "        hidden_states = residual + hidden_states + residual\n        return",
        "",
    ),
    Mutant(
        "llama",
        "resid-scaled",
        "        hidden_states = residual + hidden_states\n        return",
        "        hidden_states = residual * 0.5 + hidden_states\n        return",
        "",
    ),
    Mutant(
        "llama",
        "resid-norm",
        "        residual = hidden_states\n        hidden_states = self.input_layernorm(hidden_states)",
        "        hidden_states = self.input_layernorm(hidden_states)\n        residual = hidden_states",
        "",
    ),
    Mutant(
        "llama",
        "resid-norm2",
        "        residual = hidden_states\n        hidden_states = self.post_attention_layernorm(hidden_states)",
        "        hidden_states = self.post_attention_layernorm(hidden_states)\n        residual = hidden_states",
        "",
    ),
    Mutant(
        "llama",
        "act-on-up",
        "self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
        "self.gate_proj(x) * self.act_fn(self.up_proj(x))",
        "",
    ),
    Mutant(
        "llama",
        "act-both",
        "self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
        "self.act_fn(self.gate_proj(x)) * self.act_fn(self.up_proj(x))",
        "",
    ),
    Mutant(
        "llama",
        "glu-add",
        "self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
        "self.act_fn(self.gate_proj(x)) + self.up_proj(x)",
        "",
    ),
    Mutant(
        "llama",
        "glu-gate-twice",
        "self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
        "self.act_fn(self.gate_proj(x)) * self.gate_proj(x)",
        "extra-use",
    ),
    Mutant(
        "llama",
        "rebind",
        "key_states = self.k_proj(hidden_states)",
        "hidden_states = hidden_states * 2\n        key_states = self.k_proj(hidden_states)",
        "",
    ),
    Mutant(
        "llama",
        "inplace",
        "key_states = self.k_proj(hidden_states)",
        "hidden_states.mul_(2)\n        key_states = self.k_proj(hidden_states)",
        "writes-in-place",
    ),
    Mutant(
        "llama",
        "inplace-view",
        "key_states = self.k_proj(hidden_states)",
        "hidden_states.view(-1).mul_(2)\n        key_states = self.k_proj(hidden_states)",
        "writes-in-place",
    ),
    Mutant(
        "llama",
        "rebind-after",
        "        return down_proj\n",
        "        return down_proj * 2\n",
        "",
    ),
    Mutant(
        "llama",
        "x-rebind",
        "        down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))",
        "        g = self.act_fn(self.gate_proj(x))\n        u = self.up_proj(x)\n        x = x * 2\n        down_proj = self.down_proj(g * u)",
        "",
    ),
    Mutant(
        "llama",
        "emb-scale",
        "hidden_states = inputs_embeds\n",
        "hidden_states = inputs_embeds * 2\n",
        "",
    ),
    Mutant(
        "llama",
        "final-scale",
        "hidden_states = self.norm(hidden_states)\n",
        "hidden_states = self.norm(hidden_states) * 2\n",
        "",
    ),
    Mutant(
        "llama",
        "final-none",
        "hidden_states = self.norm(hidden_states)\n",
        "self.norm(hidden_states)\n",
        "writes-in-place",
    ),
    Mutant(
        "llama",
        "logit-scale",
        "logits = self.lm_head(hidden_states[:, slice_indices, :])",
        "logits = self.lm_head(hidden_states[:, slice_indices, :]) * 2",
        "head",
    ),
    Mutant(
        "llama",
        "head-in",
        "logits = self.lm_head(hidden_states[:, slice_indices, :])",
        "logits = self.lm_head(hidden_states[:, :-1, :])",
        "head",
    ),
    Mutant(
        "llama",
        "loop-rev",
        "in self.layers[: self.config.num_hidden_layers]",
        "in reversed(self.layers)",
        "operation",
    ),
    Mutant(
        "llama",
        "loop-part",
        "in self.layers[: self.config.num_hidden_layers]",
        "in self.layers[: self.config.num_hidden_layers - 1]",
        "layers",
    ),
    Mutant(
        "llama",
        "loop-extra",
        "            hidden_states = decoder_layer(\n",
        "            hidden_states = hidden_states * 2\n            hidden_states = decoder_layer(\n",
        "",
    ),
    Mutant(
        "llama",
        "pos-1",
        "            position_ids=position_ids,\n        )\n\n        hidden_states = inputs_embeds",
        "            position_ids=position_ids,\n        )\n        position_ids = position_ids + 1\n        hidden_states = inputs_embeds",
        "operation",
    ),
    Mutant(
        "llama", "no-mask", "attention_mask=causal_mask", "attention_mask=None", "mask"
    ),
    Mutant(
        "llama",
        "scaling-ctor",
        "self.scaling = self.head_dim**-0.5",
        "self.scaling = self.head_dim**-0.5 * 2",
        "",
    ),
    Mutant(
        "llama",
        "scaling-later",
        "        self.is_causal = True\n",
        "        self.is_causal = True\n        self.scaling = self.scaling * 2\n",
        "",
    ),
    Mutant(
        "llama",
        "head-dim-later",
        "        self.o_proj = nn.Linear(\n            config.num_attention",
        "        self.head_dim = self.head_dim // 2\n        self.o_proj = nn.Linear(\n            config.num_attention",
        "heads",
    ),
    Mutant(
        "llama",
        "dropout",
        "dropout=0.0 if not self.training else self.attention_dropout",
        "dropout=self.attention_dropout",
        "dropout",
    ),
    Mutant(
        "llama",
        "unk-kw",
        "            scaling=self.scaling,\n",
        "            scaling=self.scaling,\n            softcap=30.0,\n",
        "unknown-keyword",
    ),
    Mutant(
        "llama",
        "o-twice",
        "attn_output = self.o_proj(attn_output)\n",
        "attn_output = self.o_proj(self.o_proj(attn_output))\n",
        "parallel",
    ),
    Mutant(
        "llama",
        "o-skip",
        "attn_output = self.o_proj(attn_output)\n",
        "attn_output = attn_output\n",
        "parallel",
    ),
    Mutant(
        "llama",
        "eps-ctor",
        "LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)\n        self.rotary",
        "LlamaRMSNorm(config.hidden_size, eps=1e-2)\n        self.rotary",
        "",
    ),
    Mutant(
        "llama",
        "eps-default",
        "LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)\n        self.rotary",
        "LlamaRMSNorm(config.hidden_size)\n        self.rotary",
        "",
    ),
    Mutant(
        "llama",
        "module-rebind",
        "@auto_docstring\nclass LlamaPre",
        "LlamaMLP = nn.Identity\n\n@auto_docstring\nclass LlamaPre",
        "module-name",
    ),
    Mutant(
        "llama",
        "func-redefine",
        "class LlamaMLP(nn.Module)",
        "rotate_half = lambda x: x\n\nclass LlamaMLP(nn.Module)",
        "module-name",
    ),
    Mutant(
        "llama",
        "untie",
        '_tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}',
        "_tied_weights_keys = {}",
        "tied-weights",
    ),
    Mutant(
        "llama",
        "extra-child",
        "        self.mlp = LlamaMLP(config)\n",
        "        self.mlp = LlamaMLP(config)\n        self.gate = nn.Linear(config.hidden_size, 1)\n",
        "parallel",
    ),
    Mutant(
        "llama",
        "layer-mean",
        "        hidden_states = self.mlp(hidden_states)\n",
        "        hidden_states = self.mlp(hidden_states - hidden_states.mean(dim=1, keepdim=True))\n",
        "operation",
    ),
    Mutant(
        "llama",
        "layer-roll",
        "        hidden_states = self.mlp(hidden_states)\n",
        "        hidden_states = self.mlp(torch.roll(hidden_states, 1, 1))\n",
        "operation",
    ),
    Mutant(
        "llama",
        "mlp-twice",
        "        hidden_states = self.mlp(hidden_states)\n",
        "        hidden_states = self.mlp(self.mlp(hidden_states))\n",
        "",
    ),
    Mutant(
        "llama",
        "skip-if-idx",
        "        hidden_states = self.mlp(hidden_states)\n",
        "        if self.hidden_size > 5:\n            hidden_states = self.mlp(hidden_states)\n",
        "",
    ),
    Mutant(
        "llama",
        "getattr-override",
        "    def forward(self, x):\n        down_proj",
        "    def __call__(self, x):\n        return x\n\n    def forward(self, x):\n        down_proj",
        "method-override",
    ),
    Mutant(
        "llama",
        "rope-theta",
        "inv_freq = 1.0 / (base **",
        "inv_freq = 2.0 / (base **",
        "parameter",
    ),
    Mutant(
        "llama",
        "rope-no-update",
        "    @dynamic_rope_update  # power user: used with advanced RoPE types (e.g. dynamic rope)\n",
        "",
        "parameter",
    ),
    Mutant(
        "llama",
        "groups",
        "self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads",
        "self.num_key_value_groups = config.num_attention_heads",
        "heads",
    ),
    Mutant(
        "llama",
        "kv-q-head",
        "config.hidden_size, config.num_attention_heads * self.head_dim, bias=config.attention_bias\n        )\n        self.k_proj",
        "config.hidden_size, config.num_attention_heads * self.head_dim, bias=True\n        )\n        self.k_proj",
        "",
    ),
    Mutant(
        "llama",
        "linear-dtype",
        "self.up_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=config.mlp_bias)",
        "self.up_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=config.mlp_bias, dtype=torch.float64)",
        "linear-arguments",
    ),
    Mutant(
        "llama",
        "nn-shadow",
        "logger = logging",
        "nn = torch.nn.quantized\nlogger = logging",
        "module-name",
    ),
    Mutant(
        "llama",
        "transpose-0",
        "self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)",
        "self.v_proj(hidden_states).view(hidden_shape).transpose(1, 3)",
        "heads",
    ),
    Mutant(
        "llama",
        "v-scaled",
        "value_states = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)",
        "value_states = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2) * 2",
        "",
    ),
    Mutant(
        "llama",
        "q-scaled",
        "cos, sin = position_embeddings",
        "query_states = query_states * 2\n        cos, sin = position_embeddings",
        "",
    ),
    Mutant(
        "llama",
        "attn-out-scaled",
        "attn_output = self.o_proj(attn_output)\n",
        "attn_output = self.o_proj(attn_output * 3)\n",
        "",
    ),
    Mutant(
        "qwen3", "q-norm-k", "self.q_norm(self.q_proj(", "self.k_norm(self.q_proj(", ""
    ),
    Mutant(
        "qwen3",
        "norm-v",
        "value_states = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)",
        "value_states = self.q_norm(self.v_proj(hidden_states).view(hidden_shape)).transpose(1, 2)",
        "",
    ),
    Mutant(
        "qwen3",
        "sliding-kw",
        'if self.layer_type == "sliding_attention" else None',
        'if self.layer_type == "full_attention" else None',
        "window-conflict",
    ),
    Mutant(
        "qwen3",
        "mask-idx",
        "self.config.layer_types[i]",
        "self.config.layer_types[0]",
        "window-conflict",
    ),
    Mutant(
        "qwen3",
        "masks-swap",
        '"full_attention": create_causal_mask(**mask_kwargs)',
        '"full_attention": create_sliding_window_causal_mask(**mask_kwargs)',
        "window-conflict",
    ),
    Mutant(
        "mistral",
        "window-always",
        "create_causal_mask if self.config.sliding_window is None else create_sliding_window_causal_mask",
        "create_causal_mask",
        "window-conflict",
    ),
    Mutant(
        "mistral",
        "window-inv",
        "create_causal_mask if self.config.sliding_window is None else",
        "create_causal_mask if self.config.sliding_window is not None else",
        "window-conflict",
    ),
)


LOGGER = "logger = logging.get_logger(__name__)\n"
ACT2FN = "from ...activations import ACT2FN\n"
PRETRAINED = "\n@auto_docstring\nclass LlamaPreTrained"
MLP = "class LlamaMLP(nn.Module):\n"
LAYER = "class LlamaDecoderLayer(GradientCheckpointingLayer):\n"
BASE = '    base_model_prefix = "model"\n'

# What stands at the top of the file or in a class body may change every name's meaning.
STATED = (
    ("import-nearer", ACT2FN, ACT2FN.replace("...", "."), "operation"),
    ("import-absolute", ACT2FN, ACT2FN.replace("...", ""), "operation"),
    ("import-star", ACT2FN, ACT2FN + "from .extra import *\n", "module-name"),
    (
        "import-tried",
        ACT2FN,
        f"{ACT2FN}try:\n    from .extra import ACT2FN\nexcept ImportError:\n    pass\n",
        "module-effect",
    ),
    (
        "import-if",
        ACT2FN,
        f"{ACT2FN}if fast:\n    from .extra import ACT2FN\n",
        "module-name",
    ),
    ("builtin", LOGGER, f"{LOGGER}def getattr(*a):\n    return 1\n", "module-name"),
    ("call", LOGGER, f'{LOGGER}setattr(nn, "Linear", None)\n', "module-effect"),
    ("value-call", LOGGER, f"{LOGGER}x = patch(nn)\n", "module-effect"),
    ("item", LOGGER, f'{LOGGER}ACT2FN["silu"] = None\n', "module-effect"),
    ("for", LOGGER, f"{LOGGER}for nn in []:\n    pass\n", "module-effect"),
    ("with", LOGGER, f"{LOGGER}with a() as nn:\n    pass\n", "module-effect"),
    ("del", LOGGER, f"{LOGGER}del nn\n", "module-effect"),
    ("walrus", LOGGER, f"{LOGGER}x = (nn := None)\n", "module-effect"),
    ("global", LOGGER, f"{LOGGER}def f():\n    global nn\n    nn = 1\n", "module-name"),
    (
        "patched-method",
        PRETRAINED,
        f"LlamaMLP.forward = other\n{PRETRAINED}",
        "module-effect",
    ),
    (
        "class-again",
        PRETRAINED,
        f"if True:\n    class LlamaMLP(nn.Module):\n        pass\n{PRETRAINED}",
        "module-effect",
    ),
    ("metaclass", MLP, MLP.replace(")", ", metaclass=Meta)"), "class-body"),
    ("init-decorator", f"{MLP}    def", f"{MLP}    @doubled\n    def", "decorator"),
    ("attribute-shadow", LAYER, f"{LAYER}    mlp = None\n\n", "class-body"),
    (
        "method-shadow",
        LAYER,
        f"{LAYER}    def mlp(self, x):\n        return x\n\n",
        "class-body",
    ),
    ("forward-alias", MLP, f"{MLP}    forward = other\n\n", "class-body"),
    ("call-super", MLP, f"{MLP}    call_super_init = True\n\n", "class-body"),
    (
        "module-method",
        MLP,
        f"{MLP}    def half(self):\n        pass\n\n",
        "method-override",
    ),
    (
        "renaming",
        BASE,
        f'{BASE}    _checkpoint_conversion_mapping = {{"a": "b"}}\n',
        "class-body",
    ),
    (
        "base-constructor",
        BASE,
        f"{BASE}\n    def __init__(self, config):\n        super().__init__(config)\n",
        "base-class",
    ),
    (
        "fact-set-later",
        "        self.padding_idx",
        '        self._keep_in_fp32_modules = ["norm"]\n        self.padding_idx',
        "class-body",
    ),
    (
        "generation",
        BASE,
        f"{BASE}\n    def prepare_inputs_for_generation(self):\n        pass\n",
        "method-override",
    ),
)
MLP_CALL = "        hidden_states = self.mlp(hidden_states)\n"
MADE = "        self.mlp = LlamaMLP(config)\n"
DOWN = "        return down_proj\n"
VARIANCE = "        variance = hidden_states.pow(2).mean(-1, keepdim=True)\n"
CAUSAL = "        self.is_causal = True\n"
POINTING = "        self.gradient_checkpointing = False\n"

# What is dropped, kept or looked up in a table does nothing that its value hides.
EFFECTS = (
    *(
        (f"before-mlp-{number}", MLP_CALL, f"        {line}\n{MLP_CALL}", code)
        for number, (line, code) in enumerate(
            (
                (
                    "_ = nn.functional.relu(hidden_states, inplace=True)",
                    "writes-in-place",
                ),
                ("_ = nn.functional.relu(hidden_states, True)", "writes-in-place"),
                ("_ = torch.relu_(hidden_states)", "writes-in-place"),
                ("_ = torch.Tensor.mul_(hidden_states, 2)", "writes-in-place"),
                ('_ = f"{hidden_states.mul_(2)}"', "writes-in-place"),
                ("_ = hidden_states.__imul__(2)", "effect"),
                ("_ = (lambda: hidden_states.mul_(2))()", "effect"),
                ("_ = self.mlp.register_forward_hook(print)", "effect"),
                ('_ = setattr(self, "scaling", 0.5)', "effect"),
                ("_ = self.config.update({})", "effect"),
                (
                    "if (hidden_states := hidden_states * 2) is not None:\n"
                    "            pass",
                    "effect",
                ),
                ("if True: pass", "one-line"),
                ("with autocast(): pass", "context"),
                ("with torch.no_grad() as hidden_states: pass", "context"),
                ("positions = 1", "name-taken"),
            )
        )
    ),
    *(
        (f"constructor-{number}", MADE, f"{MADE}        {line}\n", "constructor-effect")
        for number, line in enumerate(
            (
                '_ = setattr(self, "scaling", 5.0)',
                'self.x = setattr(config, "rms_norm_eps", 0.1)',
                'self.x = config.update({"rms_norm_eps": 0.1})',
                "_ = self.mlp.register_forward_hook(print)",
                "config = config.sub",
                "self.x = (config := None)",
            )
        )
    ),
    ("constructor-name", MADE, f'{MADE}        prefix = "x"\n', "name-taken"),
    (
        "layer-replaced",
        POINTING,
        f"{POINTING}        self.layers[0] = x\n",
        "constructor-effect",
    ),
    (
        "layer-replaced-outside",
        "        self.vocab_size = config.vocab_size\n        self.lm_head",
        "        self.model.layers[0] = nn.Identity()\n        self.lm_head",
        "constructor-effect",
    ),
    (
        "base-other-config",
        "        super().__init__(config)\n        self.padding_idx",
        "        super().__init__(config.text_config)\n        self.padding_idx",
        "base-call",
    ),
    (
        "return-inside",
        f"{DOWN}",
        "        if not self.training:\n            if self.config.mlp_bias:\n"
        f"                return down_proj\n        down_proj = torch.roll(x, 1, 1)\n{DOWN}",
        "statement",
    ),
    *(
        (
            f"measured-{number}",
            DOWN,
            f"        return down_proj * {text}\n",
            "operation",
        )
        for number, text in enumerate(
            ("x.shape[1]", "x.shape[0]", "x.shape[-1]", "x.ndim", "x.mT", "(1 in x)")
        )
    ),
    (
        "measured-slice",
        DOWN,
        "        for n in x.shape[:-1]:\n            down_proj = down_proj * n\n"
        + DOWN,
        "operation",
    ),
    (
        "attribute-of-child",
        MLP_CALL,
        MLP_CALL.replace("s)\n", "s) * self.self_attn.layer_idx\n"),
        "operation",
    ),
    (
        "rotate-decorator",
        "def rotate_half",
        "@doubled\ndef rotate_half",
        "heads",
    ),
    ("repeat-decorator", "def repeat_kv", "@doubled\ndef repeat_kv", "eager-body"),
    (
        "norm-context",
        VARIANCE,
        f'        with torch.autocast("cpu"):\n    {VARIANCE}',
        "context",
    ),
    (
        "norm-in-place",
        VARIANCE,
        f"        _ = nn.functional.relu(hidden_states, inplace=True)\n{VARIANCE}",
        "writes-in-place",
    ),
    (
        "norm-state",
        VARIANCE,
        f"        self.variance_epsilon = 1e-2\n{VARIANCE}",
        "stateful",
    ),
    (
        "norm-setattr",
        VARIANCE,
        f'        setattr(self, "variance_epsilon", 1e-2)\n{VARIANCE}',
        "parameter",
    ),
    (
        "norm-hook",
        "        self.variance_epsilon = eps\n",
        "        self.variance_epsilon = eps\n        self.register_forward_hook(f)\n",
        "parameter",
    ),
)
# Layer types are looked up by the layer's own place.
PLACES = (
    (
        "counted-from-one",
        "enumerate(self.layers[: self.config.num_hidden_layers])",
        "enumerate(self.layers[: self.config.num_hidden_layers], 1)",
        "operation",
    ),
    (
        "counted-back",
        "enumerate(self.layers[: self.config.num_hidden_layers])",
        "enumerate(self.layers[: self.config.num_hidden_layers], start=-1)",
        "operation",
    ),
    (
        "mask-embeddings",
        '"inputs_embeds": inputs_embeds,',
        '"inputs_embeds": x,',
        "mask",
    ),
    (
        "place-rebound",
        "        self.layer_idx = layer_idx\n",
        "        self.layer_idx = layer_idx\n        layer_idx = 0\n",
        "constructor-effect",
    ),
    (
        "second-mapping",
        "            # The sliding window alternating",
        '            other = {"full_attention": create_causal_mask(**mask_kwargs)}\n'
        '            other["full_attention"] = 1\n'
        "            # The sliding window alternating",
        "alias",
    ),
)
ATTENTION_CALL = """\
        hidden_states, _ = self.self_attn(
            hidden_states=hidden_states,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            position_embeddings=position_embeddings,
            **kwargs,
        )
"""
LAYER_CALL = """\
            hidden_states = decoder_layer(
                hidden_states,
                attention_mask=causal_mask,
                position_embeddings=position_embeddings,
                position_ids=position_ids,
                past_key_values=past_key_values,
                use_cache=use_cache,
                **kwargs,
            )
"""
LOOP = "for decoder_layer in self.layers[: self.config.num_hidden_layers]:"
MODEL_CALL = "        outputs: BaseModelOutputWithPast = self.model(\n"
LOOKUP = "inputs_embeds: torch.Tensor = self.embed_tokens(input_ids)"
SCALING = "            scaling=self.scaling,\n"
ROTARY_CALL = "self.rotary_emb(hidden_states, position_ids=position_ids)"

# What the engine gives reaches the layers as it is, each layer once and in its place.
PASSED = (
    ("attention-twice", ATTENTION_CALL, ATTENTION_CALL * 2, "attention-calls"),
    ("layer-twice", LAYER_CALL, LAYER_CALL * 2, "attention-calls"),
    (
        "layer-inner-loop",
        LAYER_CALL,
        "            for _ in (0, 1):\n"
        + "".join(f"    {line}\n" for line in LAYER_CALL.splitlines()),
        "attention-calls",
    ),
    ("layer-step", LOOP, LOOP.replace("]", " : 2]"), "layers"),
    (
        "layer-place",
        f"{LOOP}\n",
        "for i, decoder_layer in enumerate(self.layers):\n            if i == 1:\n"
        "                hidden_states = hidden_states * 2\n",
        "",
    ),
    (
        "layer-other-place",
        f"{LOOP}\n",
        "for idx, decoder_layer in zip((3, 4), self.layers):\n"
        "            hidden_states = hidden_states * idx\n",
        "loop",
    ),
    (
        "mask-config",
        "            config=self.config,\n            inputs",
        "            config=self.config.text_config,\n            inputs",
        "mask",
    ),
    (
        "mask-positions",
        "position_ids=position_ids,\n        )\n\n        hidden_states = inputs",
        "position_ids=position_ids * 0,\n        )\n\n        hidden_states = inputs",
        "mask",
    ),
    (
        "tokens-outside",
        MODEL_CALL,
        f"        input_ids = input_ids.clamp(max=10)\n{MODEL_CALL}",
        "embedding",
    ),
    (
        "tokens-inside",
        f"            {LOOKUP}",
        f"            input_ids = input_ids + 1\n            {LOOKUP}",
        "embedding",
    ),
    ("lookup-scaled", LOOKUP, f"{LOOKUP} * 2", "embedding"),
    (
        "embeddings-outside",
        MODEL_CALL,
        f"        inputs_embeds = inputs_embeds * 2\n{MODEL_CALL}",
        "mask",
    ),
    (
        "no-tokens",
        "[:, slice_indices, :]",
        "[:, :0, :]",
        "head",
    ),
    ("other-model-config", "LlamaModel(config)", "LlamaModel(config.sub)", "base-call"),
    (
        "other-rotary-config",
        "LlamaRotaryEmbedding(config=config)",
        "LlamaRotaryEmbedding(config=config.other)",
        "child",
    ),
    (
        "rotary-precision",
        ROTARY_CALL,
        ROTARY_CALL.replace("states,", "states.half(),"),
        "operation",
    ),
    (
        "rotary-made-by-decorator",
        "    @staticmethod\n",
        "    @doubled\n    @staticmethod\n",
        "parameter",
    ),
    (
        "precision",
        BASE,
        f'{BASE}    _keep_in_fp32_modules: list = ["a"]\n',
        "keep-in-fp32",
    ),
    (
        "tied-by-a-call",
        '_tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}',
        "_tied_weights_keys = None",
        "tied-weights",
    ),
    (
        "result-class",
        "return BaseModelOutputWithPast(",
        "return MyBaseModelOutput(",
        "model-result",
    ),
    ("logits-class", "return CausalLMOutputWithPast(", "return Mine(", "head"),
    ("causal-attribute", CAUSAL, CAUSAL.replace("True", "False"), "causal"),
    ("causal-keyword", SCALING, f"{SCALING}            is_causal=False,\n", "causal"),
    (
        "norm-operands",
        "_layernorm(hidden_states)",
        "_layernorm(hidden_states, 2)",
        "arguments",
    ),
    (
        "parameter-name",
        "    def __init__(self, config):\n        super().__init__()\n",
        "    def __init__(self, config, prefix=1):\n        super().__init__()\n",
        "name-taken",
    ),
    (
        "keyword-only",
        "    def forward(self, x):\n",
        "    def forward(self, x, *, y=1):\n",
        "arguments",
    ),
    (
        "added-in-place",
        "        hidden_states = residual + hidden_states\n\n",
        "        hidden_states += residual\n\n",
        "writes-in-place",
    ),
)
MUTANTS += tuple(Mutant("llama", *row) for row in (*STATED, *EFFECTS, *PASSED))

FIRST = """\
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
"""
SUM = "        hidden_states = residual + hidden_states\n\n        # Fully"
SECOND = """\
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
"""
LAST = """\
        hidden_states = residual + hidden_states
        return hidden_states
"""
QUERY = "query_states = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)\n"
KEY = QUERY.replace("query", "key").replace("q_proj", "k_proj")
VALUE = QUERY.replace("query", "value").replace("q_proj", "v_proj")
TURNED = "        query_states, key_states = apply_rotary_pos_emb("
JOINED = "        attn_output = attn_output.reshape("
HEAD_NORM = "        self.n = LlamaRMSNorm(self.head_dim)\n"
K_MADE = """\
        self.k_proj = nn.Linear(
            config.hidden_size, config.num_key_value_heads * self.head_dim"""


@dataclass(frozen=True)
class Emitted:
    """Edits that are carried over: what the output must, and must not, contain."""

    name: str
    edits: tuple[tuple[str, str], ...]
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


SUMMED = (SUM, SUM.replace("hidden_states =", "summed ="))
FUSED_SECOND = "residual = self.post_attention_layernorm("
HANDED = "return hidden_states, residual"
SPLIT = "self.qkv_proj(hidden_states).split("
EMITTED = (
    Emitted(
        "the-old-residual-is-read-after-the-sum",
        (
            SUMMED,
            (
                SECOND,
                "        hidden_states = self.post_attention_layernorm(summed)\n"
                "        hidden_states = self.mlp(hidden_states) * residual\n"
                "        residual = summed\n",
            ),
        ),
        lacks=(FUSED_SECOND,),
    ),
    Emitted(
        "the-branch-is-read-after-the-sum",
        (
            SUMMED,
            (
                SECOND,
                "        residual = summed\n"
                "        normed = self.post_attention_layernorm(summed)\n"
                "        hidden_states = self.mlp(normed) * hidden_states\n",
            ),
        ),
        lacks=(FUSED_SECOND,),
    ),
    Emitted(
        "an-operand-is-rebound-before-the-return",
        (
            (
                LAST,
                "        out = residual + hidden_states\n"
                "        hidden_states = hidden_states * 2\n        return out\n",
            ),
        ),
        has=("out = residual + hidden_states",),
        lacks=(HANDED,),
    ),
    Emitted(
        "a-copy-before-the-return",
        ((LAST, LAST.replace("return", "residual = hidden_states\n        return")),),
        has=(HANDED,),
        lacks=("residual = hidden_states\n        return",),
    ),
    Emitted(
        "the-residual-is-named-after-the-norm",
        (
            (
                FIRST,
                "        normed = self.input_layernorm(hidden_states)\n"
                "        residual = hidden_states\n",
            ),
            (ATTENTION_CALL, ATTENTION_CALL.replace("=hidden_states", "=normed")),
        ),
        has=("normed, residual = self.input_layernorm(hidden_states, residual)",),
        lacks=("\n        residual = hidden_states",),
    ),
    Emitted(
        "the-operands-share-memory",
        ((SUM, SUM.replace("+ hidden_states", "+ residual")),),
        lacks=(FUSED_SECOND,),
    ),
    Emitted(
        "an-operand-has-another-precision",
        ((SUM, f"        residual = residual.float()\n{SUM}"),),
        lacks=(FUSED_SECOND,),
    ),
    Emitted(
        "the-caller-reads-an-operand",
        (
            (
                LAYER_CALL,
                LAYER_CALL.replace("hidden_states = d", "out = d")
                + "            hidden_states = hidden_states + out\n",
            ),
        ),
        lacks=(FUSED_SECOND,),
    ),
    Emitted(
        "the-layer-has-a-keyword",
        (
            (
                LAYER_CALL,
                LAYER_CALL.replace(" hidden_states,", " hidden_states=hidden_states,"),
            ),
        ),
        has=(HANDED, FUSED_SECOND),
    ),
    Emitted(
        "a-name-of-the-split-is-used-before",
        ((KEY, f"value_states = hidden_states * 2\n        {KEY}"),),
        lacks=(SPLIT,),
    ),
    Emitted(
        "a-size-is-named-between-the-projections",
        (
            (
                K_MADE,
                "        self.kv = config.num_key_value_heads\n"
                + K_MADE.replace("config.num_key_value_heads", "self.kv"),
            ),
        ),
        lacks=(SPLIT,),
    ),
    Emitted(
        "dropout-when-not-training",
        (
            (
                DOWN,
                "        return nn.functional.dropout("
                "down_proj, p=0.1, training=self.training)\n",
            ),
        ),
        lacks=("dropout",),
    ),
)
# Query, key and value reach the interface as heads before tokens, and leave joined.
AXES = (
    (
        "heads-after-tokens",
        f"        {QUERY}        {KEY}        {VALUE}",
        f"        {QUERY}        {KEY}        {VALUE}".replace(".transpose(1, 2)", ""),
        "layout",
    ),
    ("value-not-turned", VALUE, VALUE.replace(".transpose(1, 2)", ""), "layout"),
    (
        "output-turned",
        JOINED,
        JOINED.replace("reshape", "transpose(1, 2).reshape"),
        "layout",
    ),
    (
        "key-kept-unturned",
        "query_states, key_states = apply",
        "query_states, _ = apply",
        "operation",
    ),
    (
        "norm-on-folded-output",
        JOINED,
        f"        attn_output = self.n(attn_output)\n{JOINED}",
        "layout",
    ),
    (
        "norm-on-folded-value",
        VALUE,
        f"{VALUE}        value_states = self.n(value_states)\n",
        "layout",
    ),
    (
        "head-precision",
        "config.vocab_size, bias=False)",
        "config.vocab_size, bias=False, dtype=torch.float64)",
        "linear-arguments",
    ),
    (
        "more-embeddings",
        "nn.Embedding(config.vocab_size, ",
        "nn.Embedding(config.vocab_size + 1, ",
        "tied-weights",
    ),
    ("two-names", MADE, MADE.replace("mlp =", "mlp = self.mlp2 ="), "constructor"),
)
MUTANTS += tuple(
    Mutant(
        "llama",
        name,
        old,
        new,
        code,
        ((CAUSAL, CAUSAL + HEAD_NORM),) if "norm" in name else (),
    )
    for name, old, new, code in AXES
)
MUTANTS += tuple(Mutant("qwen3", *row) for row in PLACES)

SCALE = "self.scaling = self.head_dim**-0.5"
CACHED = "self.max_seq_len_cached = config.max_position_embeddings"
ORIGINAL = "nn.Buffer(inv_freq.clone(), persistent=False)"
EMBEDDED = "        hidden_states = inputs_embeds\n        position"
OTHER_MLP = """\
class OtherMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.down_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x):
        return self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))


class LlamaDecoderLayer("""

# What is decided, what a decorator reads, and what stands on a line.
DECIDED = (
    (
        "attribute-that-may-lack",
        MLP_CALL,
        '        if getattr(self, "scale", None) is None:\n'
        f"            hidden_states = hidden_states * 2\n{MLP_CALL}",
        "operation",
    ),
    (
        "mask-that-may-lack",
        EMBEDDED,
        "        hidden_states = inputs_embeds\n        if causal_mask is None:\n"
        "            hidden_states = hidden_states * 2\n        position",
        "operation",
    ),
    ("training-when-made", SCALE, f"{SCALE} if self.training else 2.0", "attribute"),
    (
        "implementation-when-made",
        SCALE,
        f'{SCALE} if config._attn_implementation == "eager" else 2.0',
        "constructor-effect",
    ),
    (
        "implementation-when-called",
        DOWN,
        '        if self.config._attn_implementation == "eager":\n'
        f"            down_proj = down_proj * 2\n{DOWN}",
        "operation",
    ),
    ("two-on-a-line", CAUSAL, f"{CAUSAL.rstrip()}; self.scaling = 2.0\n", "one-line"),
    ("returns-early", CAUSAL, f"{CAUSAL}        return\n", "constructor"),
    (
        "long-s",
        MLP_CALL,
        f"        hidden_\u017ftates = hidden_states * 2\n{MLP_CALL}",
        "module-name",
    ),
    ("norm-weight-name", "self.weight", "self.scale", "parameter"),
    ("rope-cached-length", CACHED, CACHED.replace("config", "2 * config"), "parameter"),
    ("rope-original", ORIGINAL, ORIGINAL.replace(".clone()", " * 2"), "parameter"),
    ("rope-scaling-name", "self.attention_scaling", "self.scale", "parameter"),
    ("second-result", "hidden_states, _ = self", "_, hidden_states = self", "results"),
    (
        "tokens-as-numbers",
        EMBEDDED,
        EMBEDDED.replace("embeds", "embeds * input_ids"),
        "operation",
    ),
    (
        "positions-as-numbers",
        EMBEDDED,
        EMBEDDED.replace("embeds", "embeds + position_ids"),
        "operation",
    ),
    (
        "merged-away",
        CAUSAL,
        f"{CAUSAL}        self.n = 1\n",
        "attribute",
        (
            (K_MADE, f"        self.n = self.q_proj.out_features\n{K_MADE}"),
            (TURNED, f"        query_states = query_states * self.n\n{TURNED}"),
        ),
    ),
    (
        "one-name-two-classes",
        "class LlamaDecoderLayer(",
        OTHER_MLP,
        "weight-names",
        (
            (POINTING, f"{POINTING}        self.mlp = OtherMLP(config)\n"),
            (
                "        hidden_states = self.norm(hidden_states)\n",
                "        hidden_states = self.norm(hidden_states)\n"
                "        hidden_states = self.mlp(hidden_states)\n",
            ),
        ),
    ),
    (
        "scale-of-the-module",
        LOGGER,
        f"{LOGGER}SCALE = 2.0\n",
        "import",
        ((DOWN, DOWN.replace("proj", "proj * SCALE")),),
    ),
)
MUTANTS += tuple(Mutant("llama", *row) for row in DECIDED)
MUTANTS += (
    Mutant(
        "llama",
        "size-changes-between",
        CAUSAL,
        f"{CAUSAL}        self.n = config.num_attention_heads\n",
        "moved",
        (
            (
                "config.num_attention_heads * self.head_dim, bias",
                "self.n * self.head_dim, bias",
            ),
            (
                K_MADE,
                "        self.n = config.num_key_value_heads\n"
                + K_MADE.replace("config.num_key_value_heads", "self.n"),
            ),
        ),
    ),
)


@cache
def upstream(model: str) -> Source:
    return read(model)


@cache
def unedited(model: str) -> str:
    return body_of(transpile_source(upstream(model)).text)


def body_of(text: str) -> str:
    """A generated text without its header, which holds digests."""
    return text.partition('"""Inference-only')[2]


def with_edits(source: Source, edits: tuple[tuple[str, str], ...]) -> Source:
    """A source with texts replaced, each of which must be there."""
    text = source.text
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return replace(source, text=text, tree=cst.parse_module(text))


@pytest.mark.parametrize("case", EMITTED, ids=lambda case: case.name)
def test_a_fusion_keeps_the_value_or_is_left_out(case: Emitted) -> None:
    text = transpile_source(with_edits(upstream("llama"), case.edits)).text
    for part in case.has:
        assert part in text
    for part in case.lacks:
        assert part not in text


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.model}-{m.name}")
def test_a_changed_meaning_is_refused_or_carried_over(mutant: Mutant) -> None:
    source = upstream(mutant.model)
    edited = with_edits(source, ((mutant.old, mutant.new), *mutant.more))
    if mutant.code:
        with pytest.raises(Refused) as refused:
            transpile_source(edited)
        assert refused.value.code == mutant.code
        assert ":" in edited.where(refused.value.node), "the refusal has no line"
    else:
        assert body_of(transpile_source(edited).text) != unedited(mutant.model)
