"""QKV: three projections of one value become one `QKVParallelLinear` and a split.

Query, key and value are what reaches the attention interface in those positions,
followed back through rotary, norms and head views; names, call order and sizes
say nothing. One input, so one matmul of the joined weights gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from transpiler.analyse.program import Scope
from transpiler.analyse.values import Value, is_const
from transpiler.fusions.fusion import (
    Fusion,
    Shard,
    Work,
    assigned_name,
    bias_of,
    block_of,
    check_still,
    distinct_values,
    forward_of,
    size_of,
    statements_of,
)
from transpiler.fusions.heads import Projection
from transpiler.fusions.linears import layer, multiples, share_checks
from transpiler.fusions.moved import check_arguments
from transpiler.fusions.packed_qkv import divide
from transpiler.fusions.projections import is_interface_call, projection_of
from transpiler.lower.axes import Axes
from transpiler.refusal import Refused
from transpiler.tree import code

ROLES = ("query", "key", "value")


class QKV(Fusion):
    """Merge the query, key and value projections into one matmul.

    Refused when
        not-one-projection: what reaches the interface comes from no or several linears.
        same-projection: two of the three are one linear.
        different-input: they read different values.
        unequal-bias: their biases differ.
        head-count: an output width is not heads times head size, or a view says so.
        head-size: the head sizes differ.
        not-dominating: the calls are not statements of one block.
        extra-use: a projection is used elsewhere too.
        input-rebound: the input's name means another value at the first statement.
        linear-arguments: a projection is made with more than sizes and bias.
        call-shape: a projection is called with more than one input.
        moved: a size means another value where the first of the three is made.
        name-taken: the class has an attribute `qkv_proj` already, or a name that the
            split binds is bound before.
    """

    name = "qkv"

    def find(self, work: Work, scope: Scope) -> Iterator[Value]:
        """Calls of the attention interface."""
        for value in distinct_values(scope):
            if is_interface_call(value) and len(value.args) >= 5:
                yield value

    def fuse(self, work: Work, scope: Scope, value: Value) -> str:
        """Check and merge the three projections of one interface call."""
        axes = Axes(work, scope)
        found = [
            projection_of(work, scope, axes, role, operand)
            for role, operand in zip(ROLES, value.args[2:5], strict=True)
        ]
        work.projections[scope.name] = found
        if len({p.child.name for p in found}) == 1 and found[0].heads.part is not None:
            return divide(work, scope, found, self.name)
        query, key, last = found
        check_alike(scope, found)
        if "qkv_proj" in scope.children or "qkv_proj" in scope.init.assigned:
            raise Refused("name-taken", "self.qkv_proj exists", scope.cls.node)
        if key.heads.count is not last.heads.count:
            raise Refused("head-count", "key and value heads differ", last.call)
        owners = statements_of(scope.cls.method("forward"))
        statements = [owners[p.call] for p in found]
        block = block_of(scope)
        if any(statement not in block for statement in statements):
            raise Refused(
                "not-dominating", "the calls are not in one block", query.call
            )
        names = [assigned_name(statement) for statement in statements]
        if None in names or len(set(names)) != 3:
            names = ["query_states", "key_states", "value_states"]
        edits = work.edits_of(scope)
        first = min(range(3), key=lambda i: block.index(statements[i]))
        check_still(scope, found[first].call.args[0].value, statements[first])
        self.check_names(scope, statements, names, first)
        place = self.ordered(scope, found)[0].child.statement
        for projection in found:
            check_arguments(projection.child, scope, place)
        edits.insert(
            statements[first],
            [
                f"{', '.join(str(n) for n in names)} = "
                f"self.qkv_proj({code(found[first].call.args[0].value)}).split("
                "[size // self.qkv_proj.tp_size "
                "for size in self.qkv_proj.output_sizes], -1)"
            ],
        )
        for projection, name in zip(found, names, strict=True):
            edits.replace_text(
                projection.call, self.name, str(name), [projection.call.args[0].value]
            )
        self.construct(work, scope, found)
        merged = " + ".join(p.child.name for p in found)
        return f"{merged} -> qkv_proj"

    def check_names(
        self,
        scope: Scope,
        statements: list[cst.CSTNode],
        names: list[str | None],
        first: int,
    ) -> None:
        """The names of the split are free until the projections' own statements."""
        flow = forward_of(scope)
        for name, statement in zip(names, statements, strict=True):
            for place in (statements[first], statement):
                if name in flow.environments[place]:
                    raise Refused("name-taken", f"{name} is bound before", statement)

    def ordered(self, scope: Scope, found: list[Projection]) -> list[Projection]:
        """The projections in the order in which the constructor makes them."""
        children = list(scope.children)
        return sorted(found, key=lambda p: children.index(p.child.name))

    def construct(self, work: Work, scope: Scope, found: list[Projection]) -> None:
        """Replace the three constructors by one, where the first of them stood."""
        query, key, _ = found
        edits = work.edits_of(scope)
        order = self.ordered(scope, found)
        arguments = [
            size_of(scope, query.child, 0)[1],
            query.heads.size_text,
            query.heads.text,
            key.heads.text,
            f"bias={bias_of(scope, query.child)[1]}",
        ]
        edits.swap(
            order[0].child.statement,
            self.name,
            [
                *share_checks(query.heads, key.heads),
                *multiples(found),
                layer("QKVParallelLinear", "qkv_proj", *arguments),
            ],
        )
        work.merged[scope.name] = "qkv_proj"
        for projection in order[1:]:
            edits.swap(projection.child.statement, self.name, [])
        for projection, shard in zip(found, ("q", "k", "v"), strict=True):
            work.shards.append(
                Shard(scope.name, projection.child.name, "qkv_proj", f'"{shard}"')
            )


def check_alike(scope: Scope, found: list[Projection]) -> None:
    """The three read one value and have one bias and one head size."""
    query = found[0]
    if len({p.child.name for p in found}) != 3:
        raise Refused("same-projection", "two of q, k, v are one linear", query.call)
    for other in found[1:]:
        if other.value.args[1] is not query.value.args[1]:
            raise Refused(
                "different-input",
                f"self.{query.child.name} and self.{other.child.name} "
                "read different values",
                other.call,
            )
        if size_of(scope, other.child, 0)[0] is not size_of(scope, query.child, 0)[0]:
            raise Refused("different-input", "input widths differ", other.child.call)
        bias, ours = bias_of(scope, other.child)[0], bias_of(scope, query.child)[0]
        if bias is not ours and not (
            ours.op == "const" and is_const(bias, ours.constant)
        ):
            raise Refused(
                "unequal-bias",
                f"self.{query.child.name} and self.{other.child.name} differ in bias",
                other.child.call,
            )
        if other.heads.size is not query.heads.size:
            raise Refused("head-size", "head sizes differ", other.child.call)
