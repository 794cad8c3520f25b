"""Mutations that change what upstream computes: a port must follow them, or refuse."""

from __future__ import annotations

from transpiler.verify.mutate.changing import (
    add_child,
    between,
    change_number,
    drop,
    edited_value,
    flip_test,
    module_call,
    one_text,
    read_again,
    scale_attribute,
    swap_arguments,
    swap_sign,
    texts,
)
from transpiler.verify.mutate.draft import Mutation

RESIDUAL = "        hidden_states = residual + hidden_states\n"
KEPT = "        residual = hidden_states\n"
NORMED = "        hidden_states = self.{norm}(hidden_states)\n"
FIRST, LATE = KEPT + NORMED, NORMED + KEPT
LOOKUP = "        hidden_states = inputs_embeds\n"
OPERANDS = (
    "            key_states,\n            value_states,\n            attention_mask"
)
SWAPPED = (
    "            value_states,\n            key_states,\n            attention_mask"
)
SCALING = "            scaling=self.scaling,\n"
GATED = "self.act_fn(self.gate_proj(x)) * self.up_proj(x)"
TURNED = (
    "query_states, key_states = "
    "apply_rotary_pos_emb(query_states, key_states, cos, sin)\n"
)
TIED = '    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}\n'
LAYERS = "self.layers[: self.config.num_hidden_layers]"

CHANGING: tuple[Mutation, ...] = (
    Mutation("extra-factor", False, edited_value(lambda _, x: f"({x}) * 1.5")),
    Mutation("extra-bias", False, edited_value(lambda _, x: f"({x}) + 0.25")),
    Mutation("extra-activation", False, edited_value(lambda _, x: f"torch.tanh({x})")),
    Mutation("negated", False, edited_value(lambda _, x: f"-({x})")),
    Mutation(
        "called-twice", False, module_call(lambda _, f, x: f"{f}({x}) + {f}({x})")
    ),
    Mutation("read-again", False, read_again),
    Mutation("input-scaled", False, module_call(lambda _, f, x: f"{f}(({x}) * 1.5)")),
    Mutation("module-skipped", False, module_call(lambda _, f, x: x)),
    Mutation("rebound-between", False, between(["{x} = {x} * 1.5\n"])),
    Mutation(
        "written-in-place",
        False,
        between(
            [
                "{x}.mul_(1.5)\n",
                "{x}.view(-1).mul_(1.5)\n",
                "{x}[:] = {x} * 1.5\n",
                "torch.mul({x}, 1.5, out={x})\n",
                "_ = nn.functional.relu({x}, inplace=True)\n",
            ]
        ),
    ),
    Mutation("statement-dropped", False, drop),
    Mutation("attribute-scaled", False, scale_attribute),
    Mutation("extra-child", False, add_child),
    Mutation("arguments-swapped", False, swap_arguments),
    Mutation(
        "operands-swapped",
        False,
        texts(
            (OPERANDS, SWAPPED),
            (OPERANDS, OPERANDS.replace("value", "key")),
            (OPERANDS, OPERANDS.replace("key", "value")),
        ),
    ),
    Mutation("number-changed", False, change_number),
    Mutation("sign-changed", False, swap_sign),
    Mutation("test-flipped", False, flip_test, is_refused=True),
    Mutation(
        "eps-elsewhere",
        False,
        one_text(
            ("eps=config.rms_norm_eps", "eps=0.5"),
            (", eps=config.rms_norm_eps", ""),
            (
                "variance + self.variance_epsilon",
                "variance + self.variance_epsilon + 0.1",
            ),
            ("torch.rsqrt(variance + self.variance_epsilon)", "torch.rsqrt(variance)"),
        ),
    ),
    Mutation(
        "norm-body",
        False,
        texts(
            ("return self.weight * hidden", "return (1 + self.weight) * hidden"),
            (".mean(-1, keepdim=True)", ".sum(-1, keepdim=True)"),
            ("hidden_states.pow(2)", "hidden_states.abs()"),
        ),
    ),
    Mutation(
        "rotary-body",
        False,
        texts(
            ("torch.cat((-x2, x1), dim=-1)", "torch.cat((x2, -x1), dim=-1)"),
            ("x1 = x[..., : x.shape[-1] // 2]", "x1 = x[..., 0::2]"),
            ("(k * cos) + (rotate_half(k) * sin)", "(k * cos)"),
            ("sin = emb.sin()", "sin = emb.cos()"),
            ("cos, sin = position_embeddings", "sin, cos = position_embeddings"),
            ("position_ids=position_ids)\n", "position_ids=position_ids + 3)\n"),
        ),
    ),
    Mutation(
        "norm-after-rotary",
        False,
        texts(
            (TURNED, TURNED + "        query_states = query_states * 1.25\n"),
            (TURNED, ""),
            (
                "self.q_norm(self.q_proj(hidden_states).view(hidden_shape))",
                "self.q_proj(hidden_states).view(hidden_shape)",
            ),
        ),
    ),
    Mutation(
        "gate-changed",
        False,
        texts(
            (GATED, "self.gate_proj(x) * self.act_fn(self.up_proj(x))"),
            (GATED, "self.act_fn(self.gate_proj(x)) + self.up_proj(x)"),
            (GATED, "self.act_fn(self.gate_proj(x) * self.up_proj(x))"),
            (GATED, "self.act_fn(self.gate_proj(x)).clamp(max=0.5) * self.up_proj(x)"),
        ),
    ),
    Mutation(
        "residual-changed",
        False,
        one_text(
            (RESIDUAL, RESIDUAL + RESIDUAL),
            (RESIDUAL, RESIDUAL.replace("residual +", "0.5 * residual +")),
            (RESIDUAL, RESIDUAL.replace("residual +", "")),
            *(
                (FIRST.replace("{norm}", n), LATE.replace("{norm}", n))
                for n in ("input_layernorm", "post_attention_layernorm")
            ),
        ),
    ),
    Mutation(
        "layers-changed",
        False,
        texts(
            (LAYERS, "self.layers[1:]"),
            (LAYERS, "self.layers[::-1]"),
            (LAYERS, "[*self.layers, self.layers[0]]"),
            (LAYERS, "reversed(self.layers)"),
        ),
    ),
    Mutation(
        "embeddings-changed",
        False,
        texts(
            (LOOKUP, LOOKUP.replace("embeds", "embeds * 3.0")),
            (LOOKUP, LOOKUP + "        hidden_states = self.norm(hidden_states)\n"),
        ),
    ),
    Mutation(
        "head-changed",
        False,
        texts(
            (
                "self.lm_head(hidden_states[:, slice_indices, :])",
                "self.lm_head(hidden_states[:, slice_indices, :]) * 0.5",
            ),
            (
                "self.lm_head(hidden_states[:, slice_indices, :])",
                "torch.tanh(self.lm_head(hidden_states[:, slice_indices, :]))",
            ),
            ("config.vocab_size, bias=False)", "config.vocab_size, bias=True)"),
        ),
    ),
    Mutation(
        "head-untied",
        False,
        texts((TIED, ""), (TIED, "    _tied_weights_keys = {}\n")),
        is_refused=True,
    ),
    Mutation(
        "bias-changed",
        False,
        one_text(
            ("bias=config.attention_bias", "bias=False"),
            ("bias=config.mlp_bias", "bias=True"),
            ("bias=True", "bias=False"),
            ("bias=False", "bias=True"),
        ),
    ),
    Mutation(
        "window-changed",
        False,
        texts(
            ("create_sliding_window_causal_mask(", "create_causal_mask("),
            (
                "attention_mask=causal_mask_mapping[self.config.layer_types[i]]",
                'attention_mask=causal_mask_mapping["full_attention"]',
            ),
            ("attention_mask=causal_mask,", "attention_mask=None,"),
        ),
    ),
    Mutation(
        "unknown-keyword",
        False,
        texts(
            (SCALING, SCALING + "            softcap=5.0,\n"),
            (SCALING, SCALING + "            s_aux=self.scaling,\n"),
        ),
        is_refused=True,
    ),
    Mutation(
        "scale-at-the-call",
        False,
        texts((SCALING, SCALING.replace("self.scaling,", "self.scaling * 2,"))),
    ),
)
